"""The cluster check: what differs between nodes, and how fast they reach each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from wizard.cluster.check import ClusterCheck, check_spec
from wizard.cluster.text import report_text
from wizard.plan import Plan
from wizard.probe.machine import probe_machine
from wizard.text import printable
from wizard.unexpected import unexpected
from wizard.validation.launch import Launch
from wizard.verl.export import plan_to_config
from wizard.verl.ray_demand import demand_of_plan

if TYPE_CHECKING:
    from screens.app import WizardApp


class ClusterScreen(Screen[None]):
    """Checks as soon as it is shown."""

    app: WizardApp

    BINDING_GROUP_TITLE = "Cluster"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s,f5", "again", "Check again", id="cluster-again"),
        Binding("c", "cancel", "Cancel", id="cluster-cancel"),
        Binding("escape,b,f2", "leave", "Back", id="cluster-leave"),
    ]
    DEFAULT_CSS = """
    ClusterScreen > #cluster-title { height: 1; background: $primary-background; color: $text; text-style: bold; }
    ClusterScreen #state { height: auto; max-height: 3; padding: 0 1; text-style: bold; }
    ClusterScreen #report { height: 1fr; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    def __init__(self, plan: Plan, launch: Launch) -> None:
        super().__init__()
        self._plan, self._launch = plan, launch
        self._check: ClusterCheck | None = None
        self._busy = False

    def compose(self) -> ComposeResult:
        yield Static(" Cluster: what differs between the nodes", id="cluster-title", markup=False)
        yield Static("", id="state", markup=False)
        with VerticalScroll(id="report"):
            yield Static("", id="found", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    @property
    def running(self) -> bool:
        """Whether a check is going on, or about to."""
        return self._busy

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done now."""
        if action == "again":
            return not self._busy
        return self._busy if action == "cancel" else True

    def on_mount(self) -> None:
        self.query_one("#report").focus()
        self._run()

    def action_again(self) -> None:
        """Check again."""
        self._run()

    async def action_cancel(self) -> None:
        """End the check and all its processes."""
        if self._check is not None:
            self._say("Cancelling …")
            await self._check.run.cancel()

    def action_leave(self) -> None:
        """Go back; a check that goes on ends with the screen."""
        self.dismiss()

    @work(exclusive=True, group="cluster", exit_on_error=False)
    async def _run(self) -> None:
        self._set_busy(True)
        self._check = None
        self.query_one("#found", Static).update("")
        try:
            await self._follow()
        except (OSError, ValueError) as error:
            self._say(f"Could not start: {printable(str(error))}")
        except Exception as error:  # the last resort: the answers are worth more than this check
            self._say(unexpected(error))
        finally:
            self._set_busy(False)

    async def _follow(self) -> None:
        """Check until there is a report.

        Raises:
            OSError, ValueError: it could not be started.
        """
        here = (await asyncio.to_thread(probe_machine)).gpus_per_node
        spec = check_spec(self._plan, self._launch, here and self._launch.gpus(self._plan, here))
        demand = demand_of_plan(self._plan, plan_to_config(self._plan))
        self._check = check = await ClusterCheck.start(spec, self.app.python, self._launch, demand)
        self._say(f"Checking with {spec.world_size} ranks on {spec.device} …")
        async for event in check.events():
            if event.kind == "step_started" and event.rank == check.run.ranks[0]:
                self._say(f"Checking with {spec.world_size} ranks on {spec.device}: {event.step} …")
        report = check.report
        self._say(printable(report.verdict.sentence))
        self.query_one("#found", Static).update(report_text(report))

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        # The screen may be gone when the application ends a check.
        if self.is_attached:
            self.refresh_bindings()

    def _say(self, text: str) -> None:
        self.query_one("#state", Static).update(text)
