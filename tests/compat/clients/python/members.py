"""Group members that are polled on a thread of their own, as the blocking clients need it."""

import threading


class PolledMember:
    """Polls until it is closed. Subclasses define poll, which returns the records that it got, and shut_down."""

    def __init__(self):
        self._lock = threading.Lock()
        self._partitions = set()
        self._records = []
        self._error = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()
        return self

    def _run(self):
        try:
            while not self._closing.is_set():
                got = self.poll()
                with self._lock:
                    self._records += got
            self.shut_down()
        except Exception as error:  # it is for the thread that waits
            self._error = error

    def _check(self):
        if self._error is not None:
            raise self._error

    def assigned(self, partitions):
        with self._lock:
            self._partitions |= set(partitions)

    def revoked(self, partitions):
        with self._lock:
            self._partitions -= set(partitions)

    def partitions(self):
        self._check()
        with self._lock:
            return sorted(self._partitions)

    def records(self):
        self._check()
        with self._lock:
            return list(self._records)

    def close(self):
        self._closing.set()
        self._thread.join()
        self._check()
