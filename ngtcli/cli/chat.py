"""`ngt chat`: a conversation, with commands that begin with /."""

import glob
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli import answer_flags, answering, options, output, streams, typed
from ngtcli.cli.command import command
from ngtcli.cli.conversation_file import Conversation as Content
from ngtcli.cli.conversation_file import (
    Exchange,
    absolute,
    last_saved,
    read_conversation,
    remember,
    to_json,
    to_markdown,
    with_sources,
)
from ngtcli.cli.notes import EachWarningOnce, Notes, report_error
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.config import SETTINGS
from ngtcli.documents.find import STDIN
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.engine.request import Request, Want, builtin_limit
from ngtcli.engine.settings import text_of
from ngtcli.errors import INTERRUPTED, InputError, UsageError, unexpected
from ngtcli.prompts.turns import Turn
from ngtcli.render.answer_view import terminal_list
from ngtcli.server.answerer import Answerer
from ngtcli.system import process
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted, nearest

_LEAVE = "Ctrl-D or /quit leaves."
_QUIT = ("quit", "exit", "bye", "q")  # the first, and names that other programs use
_CONTINUE = typer.Option(
    "--continue", help="Continue the conversation that /save FILE.json saved last."
)


@command("chat", settings=tuple(SETTINGS))
def chat(
    flags: SettingFlags,
    paths: Annotated[
        list[str] | None, typer.Argument(help="Files, folders, globs to ask about.", metavar="PATH")
    ] = None,
    docs: options.DocsOption = None,
    preset_name: options.PresetOption = None,
    continues: Annotated[bool, _CONTINUE] = False,
    show_thinking: options.ThinkingOption = False,
    verbose: options.VerboseOption = False,
) -> None:
    """Chat with a model, with or without documents: ngt chat notes/

    ngt chat -m ~/models/Qwen2.5-7B-Instruct
    ngt chat notes.md --system "Answer in one sentence."
    """
    chat_flags = answer_flags.AnswerFlags(show_thinking=show_thinking, verbose=verbose)
    output = chat_flags.output()
    request = options.tasks_of(flags, preset_name, ("chat",)).request("chat")
    docs = [*(docs or []), *(paths or [])]
    if STDIN in docs:
        raise UsageError(
            "- cannot be used: the questions come from standard input",
            hint="Name a file or a folder.",
        )
    request, output = answer_flags.check_request(request, output, chat_flags, flags)
    settings = request.settings
    conversation = Conversation(request, output)
    with reporting_to(EachWarningOnce(conversation.notes)):
        conversation.answerer.check(settings)
        if docs:
            conversation.read(docs)
        if continues:
            conversation.load(last_saved())
        stdin = streams.piped_stdin()
        conversation.pipe = stdin is not None
        if stdin is not None:
            inputs: Iterable[str | None] = typed.piped(stdin, settings.reading.max_mb)
        else:
            conversation.greet()
            inputs = typed.typed(
                [f"/{name}" for name in conversation.commands], settings.output.history
            )
        talk(conversation, inputs)
        answering.keep_warm(conversation.answerer, settings)


def talk(conversation: "Conversation", inputs: Iterable[str | None]) -> None:
    """Answer questions and follow commands until one of them ends the conversation.

    On a terminal an error or a Ctrl-C ends an answer, but not the conversation.

    Args:
        conversation: The conversation.
        inputs: Questions and commands; None for a Ctrl-C at the prompt.
    """
    for text in inputs:
        try:
            if text is None:
                conversation.notes.remark(_LEAVE)
            elif not conversation.take(text):
                return
        except KeyboardInterrupt:
            conversation.interrupted()
        except Exception as error:
            if conversation.pipe:
                raise
            if process.interrupted():  # a library turned the Ctrl-C into this error
                conversation.interrupted()
            else:
                conversation.notes.clear()
                report_error(unexpected(error))
        process.resume()


class Conversation:
    """The questions and answers so far, and the request that the next question gets."""

    def __init__(self, request: Request, output: answer_flags.Output, pipe: bool = False) -> None:
        self.pipe = pipe
        self.notes = Notes(output.verbose)
        self._request = request
        self._output = output
        self._exchanges: list[Exchange] = []
        self.answerer = Answerer(stays=True)
        self._paths: list[str] = []
        self._saved: set[Path] = set()
        self._file: Path | None = None  # the file of the last /save or /load
        self._has_asked = False
        self.commands: dict[str, tuple[str, Callable[[str], object]]] = {
            "docs": ("/docs add PATH … reads more documents, /docs lists them", self._docs),
            "sources": ("shows what the last answer quotes, and from where", self._sources),
            "system": ("/system TEXT sets the system prompt, /system - removes it", self._system),
            "save": (
                "/save FILE saves the conversation as Markdown, or as JSON to *.json",
                self._save,
            ),
            "load": ("/load FILE continues a conversation that was saved as *.json", self._load),
            "reset": ("forgets the conversation; documents stay", self._reset),
            "help": ("lists the commands; ngt help chat says more", self._help),
            "quit": ("leaves; so do /exit and Ctrl-D", lambda _: None),
        }

    def read(self, paths: list[str]) -> int:
        """Read more documents, and return how many are new. Raises InputError."""
        before = {document.path for document in self._request.documents}
        all_paths = [*self._paths, *paths]
        loaded = answer_flags.read_documents(all_paths, self._request, self._output, "")
        self._request = replace(self._request, loaded=loaded)
        self._paths = all_paths
        return len({document.path for document in loaded.documents} - before)

    def greet(self) -> None:
        """Greet the user of a terminal."""
        self.name_model()
        self.notes.remark(f"/help lists the commands. {_LEAVE}")

    def name_model(self) -> None:
        """Remark once that the built-in model cannot hold a conversation."""
        self.notes.demonstration(self._request.settings.model.model, builtin_limit(self._request))

    def take(self, text: str) -> bool:
        """Answer a question or follow a command; return whether the conversation continues."""
        if not text.startswith("/"):
            if text.strip():
                self._ask(text.strip())
            return True
        name, _, rest = text[1:].partition(" ")
        if name in _QUIT:
            return False
        if name not in self.commands:
            hint = nearest(name, self.commands, "/help lists them.")
            raise UsageError(
                f"unknown command /{name}",
                hint=f"{hint} If a question begins with /, type a space first.",
            )
        self.commands[name][1](rest.strip())
        return True

    def interrupted(self) -> None:
        """Report a Ctrl-C before an answer began. In a pipe it ends the command."""
        self.notes.warn("interrupted")
        if self.pipe:
            raise typer.Exit(INTERRUPTED)

    def _ask(self, question: str) -> None:
        self.name_model()
        turns: list[Turn] = []
        for exchange in self._exchanges:
            answer = exchange.answer
            text = answer.text.strip()
            if text:
                passages = answer.selection.new if answer.selection else ()
                turns += [Turn("user", exchange.question, passages), Turn("assistant", text)]
        # /sources and /save need the sources, whether or not they are shown now.
        wants = answering.wanted(self._output, self.notes) | {Want.SOURCES}
        request = replace(self._request, question=question, turns=tuple(turns), wants=wants)
        if self.pipe and self._has_asked:
            sys.stdout.write("\n")
        self._has_asked = True
        display = answering.AnswerDisplay(request, self._output, self.notes)
        ended = display.show(self.answerer.ask(request))
        if ended is not None:
            self._exchanges.append(Exchange(question, ended))
        if not self.pipe:
            self.notes.say("")
        elif ended is None or ended.finish_reason == "interrupted":
            raise typer.Exit(INTERRUPTED)

    def _docs(self, rest: str) -> None:
        try:
            name, *paths = shlex.split(rest) or ["list"]
        except ValueError as error:
            raise UsageError(f"/docs {rest}: {error}", hint="Close the quotes.") from None
        if name == "add" and paths and STDIN not in paths:
            added = counted(self.read(paths), "document")
            self.notes.reply(f"added {added}; there are {len(self._request.documents)}")
        elif name != "list" or paths:
            raise UsageError(
                f"/docs {rest}: unknown command", hint="Use /docs add PATH …, or /docs list."
            )
        elif not self._request.documents:
            self.notes.reply("There are no documents; /docs add PATH reads some.")
        else:
            for document in self._request.documents:
                self.notes.reply(f"{document.name}: {len(document.text):,} characters")

    def _sources(self, _: str) -> None:
        if not self._exchanges:
            self.notes.reply("There is no answer yet.")
            return
        last = self._exchanges[-1].answer
        sources = last.sources
        if not sources.spans and last.selection is not None:
            # An answer may repeat an earlier one of a saved conversation, whose passages the
            # prompt does not have.
            sources = sources_of(last.text, self._request.documents)
            if sources.spans:
                self.notes.reply("Quoted from passages that were not read for the last answer:")
        if not sources.spans:
            self.notes.reply("Nothing in the last answer is quoted from the documents.")
            return
        width = streams.terminal_width(sys.stderr)
        is_styled = streams.styles(sys.stderr)
        for line in terminal_list(sources.places(), width, is_styled).splitlines():
            self.notes.styled(line)

    def _system(self, text: str) -> None:
        settings = self._request.settings
        if not text:
            self.notes.reply(settings.answer.system or "There is no system prompt.")
            return
        system = "" if text == "-" else text_of(text, settings.reading.max_mb, "/system")
        self._set_system(system)

    def _set_system(self, system: str) -> None:
        settings = self._request.settings.replace(system=system)
        from ngtcli.engine.checks import check_session  # it loads what reads models

        check_session(settings)  # the chat template may not support a system prompt
        self._request = replace(self._request, settings=settings)

    def _save(self, name: str) -> None:
        if name:
            path = options.named_file(name).expanduser()
        elif self._file is not None:
            path = self._file
        else:
            raise UsageError("/save requires a file", hint="Use /save FILE.")
        output.check_output_file(path)
        hint = "Name a file that does not exist yet."
        if path.exists() and path.resolve() not in self._saved:
            raise UsageError(f"{path} already exists", hint=hint)
        is_json = path.suffix.lower() == ".json"
        text = to_json(self._content) if is_json else to_markdown(self._content)
        output.write_page(f"{text}\n", path, hint)
        self._saved.add(path.resolve())
        if is_json:
            self._file = path
            remember(path)
        self.notes.reply(f"saved {counted(len(self._exchanges), 'question')} in {path}")

    @property
    def _content(self) -> Content:
        """This conversation as a file has it."""
        settings = self._request.settings
        return Content(
            model=settings.model.model,
            system=settings.answer.system,
            paths=[absolute(path) for path in self._paths],
            documents=self._request.documents,
            exchanges=self._exchanges,
        )

    def _load(self, name: str) -> None:
        if not name:
            raise UsageError("/load requires a file", hint="Use /load FILE.json.")
        self.load(options.named_file(name).expanduser())

    def load(self, path: Path) -> None:
        """Continue a saved conversation, and read its documents.

        The conversation so far is forgotten. A system prompt of the settings stays.

        Raises:
            InputError: The file is not a saved conversation.
        """
        saved = read_conversation(path)
        content = saved.conversation
        settings = self._request.settings
        own_paths = {absolute(own_path) for own_path in self._paths}
        existing: list[str] = []
        for document_path in content.paths:
            if document_path in own_paths:
                continue
            if os.path.lexists(document_path) or glob.has_magic(document_path):
                existing.append(document_path)
            else:
                self.notes.warn(
                    f"{document_path} no longer exists: the conversation continues without it"
                )
        self._read_again(existing)
        if content.system and not settings.answer.system:
            self._set_system(content.system)
        changed = saved.changed(self._request.documents)
        if changed:
            names = ", ".join(changed)
            self.notes.warn(f"changed or missing since the conversation was saved: {names}")
        if content.model and content.model != settings.model.model:
            model = settings.model.model
            self.notes.warn(f"the answers so far are from {content.model}; {model} continues")
        self._exchanges = with_sources(content.exchanges, self._request.documents)
        self._saved.add(path.resolve())
        self._file = path
        count = counted(len(self._exchanges), "question")
        self.notes.reply(f"loaded {count} from {path}")

    def _read_again(self, paths: list[str]) -> None:
        """Read the documents of a saved conversation; warn of those that cannot be read."""
        try:
            if paths:
                self.read(paths)
        except InputError as error:
            if len(paths) > 1:
                for path in paths:
                    self._read_again([path])
                return
            self.notes.warn(f"{error}: the conversation continues without it")

    def _reset(self, _: str) -> None:
        self._exchanges.clear()
        self.notes.reply("The conversation is forgotten.")

    def _help(self, _: str) -> None:
        for name, described in self.commands.items():
            self.notes.reply(f"/{name:<8} {described[0]}")
