"""A proxy between SSH client and server that counts, delays and cuts connections."""
import contextlib
import queue
import socket
import threading
import time


class Proxy:
    """Between client and server. cut=(way, bytes): the first connections end once so many bytes went "up" or "down", or
    with stall=True go silent. delay_s is on the way, in each direction: what is under way together is delayed together."""

    def __init__(self, port, cut=None, delay_s=0.0, cuts=1, stall=False):
        self.target, self.cut, self.delay_s, self.cuts, self.stall = port, cut, delay_s, cuts, stall
        self.accepted = 0
        self.turns = 0  # how often the client spoke after the server had: at most so many round trips were waited for
        self.last = "down"
        self.stalled = False  # takes all and passes nothing on, as a network that was unplugged
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.accepted += 1
                server = socket.create_connection(("127.0.0.1", self.target))
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sockets += [client, server]
                cut = self.cut if self.accepted <= self.cuts else None
                for way, source, sink in (("up", client, server), ("down", server, client)):
                    left = cut[1] if cut and cut[0] == way else None
                    self.start(way, source, sink, left)

    def start(self, way, source, sink, left):
        line = queue.SimpleQueue()
        threading.Thread(target=self.take, args=(way, source, line), daemon=True).start()
        threading.Thread(target=self.give, args=(way, source, sink, line, left), daemon=True).start()

    def take(self, way, source, line):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.stalled and source in self.sockets[:2]:
                    continue
                if way == "up":  # as the client sends it; what comes down counts when it has arrived
                    self.turns += self.last == "down"
                    self.last = "up"
                line.put((time.monotonic() + self.delay_s, data))
        line.put((time.monotonic() + self.delay_s, b""))

    def give(self, way, source, sink, line, left):
        with contextlib.suppress(OSError):
            while True:
                due, data = line.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                if way == "down":
                    self.last = "down"
                sink.sendall(data)
                if left == 0:
                    if not self.stall:
                        break
                    self.stalled = True
                    return
        self.end(source, sink)

    @staticmethod
    def end(*sockets):
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut_now(self):
        self.end(*self.sockets)

    def close(self):
        self.listener.close()
        self.cut_now()
