"""Takes one POST on a free port and writes the request to a file.

Arguments: FILE for the port, once it listens, FILE for the request, once it is read.
SPDX-License-Identifier: MIT
"""
import http.server
import os
import sys


def write(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)  # atomic: a reader finds the whole file or none


class Sink(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(204)
        self.end_headers()
        write(sys.argv[2], f"{self.path} {self.headers['X-Filetimer-Verdict']}\n{body}")


server = http.server.HTTPServer(("127.0.0.1", 0), Sink)
write(sys.argv[1], str(server.server_port))
server.handle_request()
