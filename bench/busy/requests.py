"""One client of a web page: requests.py HOST PORT PATH SECONDS FILE

A request at a time, half a millisecond apart. Writes when each was answered (s since 1970)
and how long that took (µs), a line each.
"""
import gc
import socket
import sys
import time

PAUSE = 0.0005


def opened(host, port):
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def answered(connection):
    """Whether a complete answer arrived; servers close after some."""
    got, size = b"", None
    while size is None or len(got) < size:
        more = connection.recv(1 << 16)
        if not more:
            return False
        got += more
        if size is None and b"\r\n\r\n" in got:
            head = got.split(b"\r\n\r\n")[0]
            size = len(head) + 4 + int(head.lower().split(b"content-length:")[1].split()[0])
    return True


def main(host, port, path, seconds, file):
    # A collection would be a latency of this client.
    gc.disable()
    end, took = time.time() + float(seconds), []
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    connection = opened(host, int(port))
    while time.time() < end:
        begun = time.time()
        connection.sendall(request)
        whole, now = answered(connection), time.time()
        if whole:
            took.append((now, (now - begun) * 1e6))
        else:
            connection = opened(host, int(port))
        time.sleep(PAUSE)
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(f"{at:.6f} {micros:.1f}\n" for at, micros in took)


main(*sys.argv[1:])
