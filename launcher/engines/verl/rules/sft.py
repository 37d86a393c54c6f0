"""What `sft_trainer` finds after the processes have started; SFT has no checks before that."""

from __future__ import annotations

from launcher.core.problems import suggest
from launcher.engines.verl.rules.data import judge_files, trained_rows
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import BatchSizes, divisors, is_set, multiples


def judge_sft(run: BatchSizes, facts: LaunchFacts) -> Results:
    parallel = run.model_parallel("engine")
    if run.gpus % parallel:
        where, fix = "engine.ulysses_sequence_parallel_size", divisors(run.gpus, parallel)
        if run.uses_megatron("engine"):
            where, fix = "trainer.n_gpus_per_node", multiples(run.gpus, parallel)
        got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model"
        yield fails(where, got, fix, "conflicting-settings")
    yield from _batch(run, facts)
    yield from _lengths(run, facts)
    if not is_set(run("data.custom_cls.path")):
        yield from _rows(run, facts)
    path, mode = run("trainer.resume_from_path"), run("trainer.resume_mode")
    if mode != "disable" and "global_step_" not in str(path) and (path is not None or mode == "resume_path"):
        yield fails("trainer.resume_from_path", f"{path}", "use the folder .../global_step_N")


def _batch(run: BatchSizes, facts: LaunchFacts) -> Results:
    """An epoch of no step is a division by zero."""
    ranks, where, rows = run.ranks("engine"), "data.train_batch_size", trained_rows(run, facts)
    if run.batch < ranks:
        yield fails(where, f"{run.batch} rows are fewer than {ranks} ranks", [ranks], "conflicting-settings")
        return
    share = run.batch // ranks
    if run.batch % ranks:
        got = f"{run.batch} rows cannot be shared by {ranks} ranks: {share * ranks} are trained on"
        yield warns(where, got, multiples(run.batch, ranks), "conflicting-settings")
    micro = run("data.micro_batch_size_per_gpu")
    if not run("data.use_dynamic_bsz") and (not micro or micro < 1 or share % micro):
        got = f"a rank has {share} rows, which cannot be cut into micro-batches of {micro}"
        near = divisors(share, max(micro or 4, 1))
        yield fails("data.micro_batch_size_per_gpu", got, near, "conflicting-settings")
    if rows is not None and rows // ranks < share:
        got = f"{run.batch} rows are more than the {rows} there are: an epoch has no step"
        fix = [rows // ranks * ranks] if rows >= ranks else "use more rows"
        yield fails(where, got, fix, "not-enough")
    if facts.run.val_rows is not None and run("data.val_files") and facts.run.val_rows // ranks < share:
        got = f"{facts.run.val_rows} rows are no whole batch of {run.batch}: val/loss is nan"
        yield warns("data.val_files", got, f"use at least {share * ranks} rows", "not-enough")


def _lengths(run: BatchSizes, facts: LaunchFacts) -> Results:
    room, limit = run("data.max_token_len_per_gpu"), run("data.max_length")
    parallel = run.sequence_parallel("engine")
    if run("data.use_dynamic_bsz") and room * parallel < limit:
        got = f"{room * parallel:,} tokens are fewer than data.max_length={limit:,}"
        yield fails("data.max_token_len_per_gpu", got, [-(-limit // parallel)], "conflicting-settings")


def _rows(run: BatchSizes, facts: LaunchFacts) -> Results:
    keys = ("data.train_files", *(["data.val_files"] if run("data.val_files") else []))
    yield from judge_files(run, keys, (".parquet",), facts)
    key, columns = run("data.messages_key"), facts.columns
    if columns is not None and key not in columns:
        got, fix = f"the rows have no column {key}", suggest(str(key), sorted(columns))
        if {"prompt", "response"} <= columns or {"question", "answer"} <= columns:
            got, fix = f"{got}; prompt and response are not read", "write rows with messages=[{role, content}, ...]"
        yield fails("data.messages_key", got, fix, "bad-row")
    if facts.run.differs_by_turn and not run("data.ignore_input_ids_mismatch"):
        got = f"{facts.run.differs_by_turn} written turn by turn is not what the chat template writes of it as a whole"
        fix = "use true, with which the turns are trained on as they are written one by one"
        yield fails("data.ignore_input_ids_mismatch", f"false, and {got}", fix, "bad-row")
