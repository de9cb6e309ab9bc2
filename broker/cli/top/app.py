"""The screen of `leveret top`, and its questions to the API (driver: the terminal, a thread).

What it shows is made by `model`. A thread asks, so that no wait stops the screen.
"""

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Key, Resize
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import ApiClient
from leveret.broker.cli.ctl.output import ApiError, CtlError
from leveret.broker.cli.top.model import Answer, Broker, Model, Question
from leveret.broker.cli.top.views import KEYS, TYPING_KEYS, VIEWS, Line, help_lines, key_line

SECONDS: Final = 10.0  # time for each answer
_NODE: Final = (
    "name,uptime,mem_used,mem_limit,mem_alarm,disk_free,disk_free_limit,disk_free_alarm,fd_used,fd_total"
)
_BAD_REQUEST: Final = 400


class Source:
    """Asks the API; with a vhost only its lists are shown, otherwise those of all that the user may see."""

    def __init__(self, api: ApiClient, vhost: str | None = None) -> None:
        self._api = api
        self._vhost = vhost
        self._may_see_node = True

    def ask(self, question: Question) -> Answer:
        """Return the answer to a question.

        Raises ApiError if the broker refuses it, as for a vhost that does not exist; CtlError if there is no broker, or
        it does not let us in.
        """
        try:
            overview = self._api.get("overview")
            return Answer(question, Broker(overview, self._node(overview.get("node"))), self._page(question))
        except CtlError:
            self._api.close()
            raise

    def _node(self, name: str | None) -> dict[str, Any]:
        if not self._may_see_node:
            return {}
        try:
            nodes: list[dict[str, Any]] = self._api.get("nodes", columns=_NODE)
        except CtlError as error:
            if error.code != exit_codes.NO_PERMISSION:
                raise
            self._may_see_node = False
            return {}
        return next((each for each in nodes if each.get("name") == name), {})

    def _page(self, question: Question) -> dict[str, Any]:
        """Return the page of the list, or the first if the list has become shorter than that."""
        resource = question.view.resource
        path = [resource]
        if self._vhost is not None:
            path = [resource, self._vhost] if resource == "queues" else ["vhosts", self._vhost, resource]
        try:
            page: dict[str, Any] = self._api.get(*path, **question.query)
        except ApiError as error:
            if error.status != _BAD_REQUEST or question.query["page"] == "1":
                raise
            page = self._api.get(*path, **{**question.query, "page": "1"})
        return page


class Poller:
    """Asks in a thread of its own, one question after the other; a new one replaces one that waits.

    `deliver` gets the answer, or what was raised instead; it is called in the thread.
    """

    def __init__(self, source: Source, deliver: Callable[[Answer | Exception], object]) -> None:
        self._source = source
        self._deliver = deliver
        self._waiting: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        # A daemon: an answer that does not come must not keep the terminal from its owner.
        self._thread = threading.Thread(target=self._run, name="leveret top", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> None:
        """Ask a question as soon as the one before it is answered."""
        self._waiting.put(question)

    def end(self) -> None:
        """End the thread after the answer that it waits for; does not wait for it."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (question := self._last()) is not None:
            try:
                answer: Answer | Exception = self._source.ask(question)
            except Exception as error:  # noqa: BLE001 - it must not end here unseen
                answer = error
            self._deliver(answer)

    def _last(self) -> Question | None:
        """Wait for a question, and return the last that waits; None at the end."""
        question = self._waiting.get()
        while question is not None and not self._waiting.empty():
            question = self._waiting.get()
        return question


STYLES = {  # styles of lines, in the colours of the terminal
    "": "",
    "label": "ansi_bright_black",
    "value": "bold",
    "dim": "ansi_bright_black",
    "title": "bold reverse",
    "paused": "bold reverse ansi_yellow",
    "chosen": "bold reverse",
    "heading": "bold ansi_cyan",
    "sorted": "bold reverse ansi_cyan",
    "cursor": "reverse",
    "warning": "ansi_yellow",
    "alarm": "bold ansi_red",
    "key": "bold",
}


def content(lines: Iterable[Line]) -> Content:
    """Return lines as the widgets take them; nothing in them is markup."""
    parts = [Content.assemble(*[(text, STYLES[style]) for text, style in line]) for line in lines]
    return Content("\n").join(parts)


class HelpScreen(ModalScreen[None]):
    """The keys and the columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,h,q,enter", "app.pop_screen", "Back")
    ]

    def __init__(self, lines: list[Line]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Make the text."""
        with VerticalScroll(id="help"):
            yield Static(content(self._lines))


class Top(App[CtlError]):
    """The screen; its result is an error instead of the first answer.

    `interval` are the seconds between two questions.
    """

    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    Static { text-wrap: nowrap; text-overflow: clip; height: auto; }
    #table { height: 1fr; }
    #status { height: 1; }
    #keys { height: 1; }
    #narrowing { height: 0; }
    #narrowing Label { width: auto; }
    #narrowing Input { height: 1; border: none; padding: 0; width: 1fr; }
    HelpScreen { align: center middle; }
    #help { width: 80; max-width: 100%; height: auto; max-height: 100%; border: round ansi_bright_black; padding: 0 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("question_mark,h", "help"),
        *(Binding(view.key, f"view({at})") for at, view in enumerate(VIEWS)),
        Binding("tab", "next_view(1)", priority=True),
        Binding("shift+tab", "next_view(-1)", priority=True),
        Binding("right,greater_than_sign,s", "change('sort_next', 1)"),
        Binding("left,less_than_sign,S", "change('sort_next', -1)"),
        Binding("r", "change('flip')"),
        Binding("slash,f", "narrow"),
        Binding("escape", "widen", priority=True),
        Binding("p,space", "pause"),
        Binding("ctrl+z", "suspend_process"),
        Binding("up,k", "change('move', -1)"),
        Binding("down,j", "change('move', 1)"),
        Binding("pageup", "change('turn', -1)"),
        Binding("pagedown", "change('turn', 1)"),
        Binding("home,g", "change('go_first')"),
        Binding("end,G", "change('go_last')"),
    ]

    class Arrived(Message):
        """An answer, or an error, that came from the thread."""

        def __init__(self, answer: Answer | Exception) -> None:
            super().__init__()
            self.answer = answer

    def __init__(self, source: Source, model: Model, interval: float) -> None:
        super().__init__(ansi_color=True)
        self._model = model
        self._interval = interval
        self._source = source
        self._poller: Poller | None = None

    def compose(self) -> ComposeResult:
        """Make the widgets, from top to bottom."""
        yield Static(id="header")
        yield Static(id="table")
        with Horizontal(id="narrowing"):
            yield Label("filter: ")
            yield Input(id="filter", select_on_focus=False)
        yield Static(id="status")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Begin to ask."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.exit)
        self._poller = Poller(self._source, lambda answer: self.post_message(self.Arrived(answer)))
        self.set_interval(self._interval, self._ask_again)
        self._ask()

    def on_unmount(self) -> None:
        """End the thread."""
        if self._poller is not None:
            self._poller.end()

    def on_resize(self, event: Resize) -> None:
        """Take the new size."""
        self._model.resize(event.size.width, event.size.height)
        self._ask()

    def on_top_arrived(self, message: Arrived) -> None:
        """Show an answer."""
        match message.answer:
            case Answer() as answer:
                self._model.take(answer)
            case CtlError() as error if not self._model.is_answered:
                self.exit(error)
            case ApiError() as error:
                self._model.fail(f"refused, trying again: {error}")
            case CtlError() as error:
                self._model.fail(f"not reachable, trying again: {str(error).removeprefix('Error:').strip()}")
            case error:
                raise error
        self._draw()

    def on_key(self, event: Key) -> None:
        """Pass on a character that was typed so soon after `/` that the filter did not have the focus yet."""
        if self.focused is None or self.focused.id != "filter":
            return
        field = self.query_one("#filter", Input)
        if event.is_printable and event.character is not None:
            field.insert_text_at_cursor(event.character)
            event.stop()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list during typing."""
        self._model.narrow(event.value)
        self._ask()

    def on_input_submitted(self) -> None:
        """Keep the filter, and give the keys back to the list."""
        self._type(is_typing=False)

    def _ask_again(self) -> None:
        if not self._model.is_paused:
            self._ask()

    def _ask(self) -> None:
        if self._poller is not None:
            self._poller.ask(self._model.question())
        self._draw()

    def _draw(self) -> None:
        model = self._model
        clock = datetime.now().astimezone().strftime("%H:%M:%S")
        self.screen_stack[0].query_one("#header", Static).update(
            content(model.header(clock, f"{self._interval:g} s"))
        )
        for name, lines in (("table", model.table()), ("status", [model.status()]), ("keys", [self._keys()])):
            self.screen_stack[0].query_one(f"#{name}", Static).update(content(lines))

    def _keys(self) -> Line:
        is_typing = self.screen_stack[0].focused is not None
        return key_line(TYPING_KEYS if is_typing else KEYS)

    def _type(self, *, is_typing: bool) -> None:
        field = self.query_one("#filter", Input)
        # By their heights: what is not displayed could not have the focus at once, and keys that are typed meanwhile
        # would be taken for commands.
        self.query_one("#narrowing").styles.height = int(is_typing)
        self.query_one("#status").styles.height = int(not is_typing)
        self.screen.set_focus(field if is_typing else None)
        self._draw()

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_help(self) -> None:
        """Show the keys and the columns."""
        self.push_screen(HelpScreen(help_lines(self._model.view)))

    def action_view(self, at: int) -> None:
        """Show a list."""
        self._model.show(VIEWS[at])
        self._switched()

    def action_next_view(self, step: int) -> None:
        """Show another list; in the help there is nothing to go to."""
        if len(self.screen_stack) > 1:
            return
        self._model.show_next(step)
        self._switched()

    def _switched(self) -> None:
        self.query_one("#filter", Input).value = self._model.filter
        self._type(is_typing=False)
        self._ask()

    def action_narrow(self) -> None:
        """Let the user type a filter."""
        self._type(is_typing=True)

    def action_widen(self) -> None:
        """Close the help, or else drop the filter."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
            return
        self.query_one("#filter", Input).value = ""
        self._model.narrow("")
        self._type(is_typing=False)
        self._ask()

    def action_pause(self) -> None:
        """Stop asking, or go on."""
        self._model.is_paused = not self._model.is_paused
        self._ask_again()
        self._draw()

    def action_change(self, what: str, *arguments: int) -> None:
        """Change what is shown, by the method of the model with this name."""
        getattr(self._model, what)(*arguments)
        # A new order is always asked for: turned twice before an answer it is as shown, but another one was asked for.
        if what in {"sort_next", "flip"} or self._model.is_outdated:
            self._ask()
        else:
            self._draw()
