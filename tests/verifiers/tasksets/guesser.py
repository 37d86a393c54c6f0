"""Several turns: a number is guessed, and the environment plays the user who says higher or lower."""

import verifiers.v1 as vf


class GuesserData(vf.TaskData):
    number: int


class GuesserTask(vf.Task[GuesserData]):
    @vf.metric
    async def guesses(self, trace: vf.Trace) -> float:
        return float(len(trace.assistant_messages))


class GuesserConfig(vf.TasksetConfig):
    num_tasks: int = 4


class GuesserTaskset(vf.Taskset[GuesserTask, GuesserConfig]):
    def load(self) -> list[GuesserTask]:
        return [GuesserTask(GuesserData(prompt=f"{n} guess", number=n + 3)) for n in range(self.config.num_tasks)]


class GuesserEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuesserEnv(vf.Env[GuesserEnvConfig]):
    async def run(self, task: GuesserTask, agents: vf.Agents) -> None:
        nearest, number = 9, task.data.number
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                digits = [int(each) for each in segment.last_reply if each in "0123456789"]
                nearest = min([nearest, *(abs(each - number) for each in digits)])
                if nearest == 0:
                    break
                segment = await interaction.turn("higher" if digits and digits[-1] < number else "lower")
        interaction.trace.record_reward("nearness", 1 - nearest / 9)
