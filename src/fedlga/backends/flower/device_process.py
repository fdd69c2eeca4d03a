"""A device process that stays up: it takes message after message from its SuperNode, and keeps model and data.

Flower starts a process for each message, and each imports torch and reads the data again. This one does it once for an
app. `warm_node.py` starts it, and writes a byte to its standard input when there is a message. It calls of Flower what
Flower's own process (`flwr-clientapp`) calls, in the same order.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message
from flwr.cli.install import install_from_fab
from flwr.clientapp.client_app import LoadClientAppError
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedlga.backends.flower.flower_private import quicken_pulls

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

LONGEST_PULL = 5.0  # seconds: the node says that there is a message when it has all of it
TOKEN, FAB = "FEDLGA_TASK_TOKEN", "FEDLGA_TASK_FAB"  # the task that a new process begins with


class DeviceProcess:
    """Carries out messages one after another; the app is loaded once."""

    def __init__(self, address: str) -> None:
        """`address` is the SuperNode's runtime API."""
        self._address = address
        self._fab = ""  # hash of the app that is loaded, or could not be
        self._app: ClientApp | None = None
        self._folder, self._environment = Path.cwd(), dict(os.environ)  # an app may change them

    def serve(self) -> None:
        """Carry out messages until the node is gone."""
        if token := os.environ.pop(TOKEN, None):
            self.perform(token, os.environ.pop(FAB, ""))
        asking = self._connect(RuntimeVersionHttpInterceptor(component_name="SuperExec"))
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        while True:
            answer = asking.AcquireTask(request)
            if answer.HasField("task") and answer.token:
                self.perform(answer.token, answer.task.fab_hash)
            elif not _wait_for_word():
                return

    def perform(self, token: str, fab: str) -> None:
        """Carry out the message that a token stands for. Another app gets a process of its own in place of this one."""
        os.chdir(self._folder)
        if self._fab and (fab != self._fab or self._app is None):
            # Two apps in one process could be given each other's modules; so could one that failed when it was loaded.
            environment = {**self._environment, TOKEN: token, FAB: fab}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
        self._fab = fab
        client = self._connect(
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)
        )
        heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heart.start()
        message, context, outcome, details = None, None, SubStatus.FAILED, "no reason given"
        try:
            message, context, run, content = pull_task_input(client)
            if self._app is None:
                install_from_fab(content.content, skip_prompt=True)
                load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
                self._app = load(run.fab_id, run.fab_version, content.hash_str)
            reply = self._app(message=message, context=context)
            outcome, details = SubStatus.COMPLETED, ""
        except (Exception, SystemExit) as error:  # it is the app's, and the aggregator hears of it
            log(ERROR, "the ClientApp failed", exc_info=error)
            reply, details = _as_reply(error, message), str(error)
        try:
            if reply is not None and context is not None:
                push_message(client, reply, context)
        except Exception as error:  # the node is gone, or the run; the next message may go well
            log(ERROR, "a reply could not be handed over", exc_info=error)
        try:
            push_task_output(client=client, context=context, sub_status=outcome, details=details)
        except Exception as error:
            log(ERROR, "the node could not be told that its message was dealt with", exc_info=error)
        finally:
            with contextlib.suppress(RuntimeError):  # it has stopped by itself
                heart.stop()
            client.close()

    def _connect(self, *interceptors: Any) -> RuntimeHttpClient:
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,  # loopback, as between Flower's own processes
            root_certificates=None,
            interceptors=list(interceptors),
            retry_invoker=make_simple_http_retry_invoker(),
        )


def _as_reply(error: Exception | SystemExit, message: Message | None) -> Message | None:
    """Return the reply that says what went wrong, in Flower's form."""
    if message is None:
        return None
    failed_to_load = isinstance(error, LoadClientAppError)
    code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION if failed_to_load else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=f"{type(error)}:<'{error}'>"), reply_to=message)


def _wait_for_word() -> bool:
    """Wait until the node says that there is a message; return False if the node is gone."""
    return bool(os.read(sys.stdin.fileno(), 4096))


def _end_with(parent: int) -> None:
    """End this process when its node is gone: also if an app ignores signals, or never comes back."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    options = parser.parse_args()
    threading.Thread(target=_end_with, args=(options.parent_pid,), daemon=True).start()
    # A message whose rest never comes, because its run was stopped meanwhile, must not keep the next ones waiting:
    # Flower gives each a process of its own.
    quicken_pulls(LONGEST_PULL)
    with contextlib.suppress(ImportError):  # so that the first message need not wait for it
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
    DeviceProcess(options.runtime_api_address).serve()


if __name__ == "__main__":
    main()
