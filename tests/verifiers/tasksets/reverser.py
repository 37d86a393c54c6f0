"""One turn: what the answer has in common with the word in reverse."""

from difflib import SequenceMatcher

import verifiers.v1 as vf


class ReverserData(vf.TaskData):
    answer: str


class ReverserTask(vf.Task[ReverserData]):
    @vf.reward(weight=1.0)
    async def likeness(self, trace: vf.Trace) -> float:
        return SequenceMatcher(None, trace.last_reply, self.data.answer).ratio()

    @vf.reward(weight=-0.001)
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply)


class ReverserConfig(vf.TasksetConfig):
    num_tasks: int = 4


class ReverserTaskset(vf.Taskset[ReverserTask, ReverserConfig]):
    def load(self) -> list[ReverserTask]:
        words = [f"{n} cab" for n in range(self.config.num_tasks)]
        return [ReverserTask(ReverserData(prompt=word, system_prompt="reverse", answer=word[::-1])) for word in words]
