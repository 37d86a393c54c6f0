"""Tools: the server that verifiers' template writes, with a reward for its use, which may be impossible to compute."""

import verifiers.v1 as vf
from echoer.servers.tool import EchoerToolset


class EchoerData(vf.TaskData):
    broken: bool = False


class EchoerTask(vf.Task[EchoerData]):
    @vf.reward(weight=0.5)
    async def echoed(self, trace: vf.Trace) -> float:
        if self.data.broken:
            raise ConnectionError("no route to the judge")
        return float(sum("ab" in str(message.content) for message in trace.tool_messages))

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class EchoerConfig(vf.TasksetConfig):
    num_tasks: int = 4
    broken: bool = False
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class EchoerTaskset(vf.Taskset[EchoerTask, EchoerConfig]):
    @classmethod
    def toolsets(cls, config: EchoerConfig) -> list[vf.Toolset]:
        return [EchoerToolset(config.tools)]

    def load(self) -> list[EchoerTask]:
        numbers = range(self.config.num_tasks)
        return [EchoerTask(EchoerData(prompt=f"{n} echo ab", broken=self.config.broken)) for n in numbers]
