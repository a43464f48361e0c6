import Foundation

/// Serve a host until it sends `stop`, closes the socket, or SIGTERM arrives; return the exit status.
public func serve(socket: Int32, arena: Int32) -> Int32 {
    for descriptor in [socket, arena] { _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC) }
    signal(SIGPIPE, SIG_IGN)
    let connection = Connection(descriptor: socket)
    let worker: Worker
    do {
        worker = Worker(arena: try Arena(descriptor: arena))
    } catch {
        _ = connection.write(Worker.lastWords(error).reply)
        return 2
    }
    close(arena)
    let termination = Termination()
    while termination.waits(for: socket) {
        let answer: Worker.Answer
        do {
            guard let message = try connection.read() else { return 0 }
            answer = pooled { worker.answer(message) }
        } catch {
            answer = Worker.lastWords(error)
        }
        guard connection.write(answer.reply) else { return 0 }
        if let end = answer.end { return end }
    }
    return 0
}

/// Handles SIGTERM between two messages; a second one ends the process at once.
private struct Termination {
    private static let pipeEnds: (read: Int32, write: Int32) = {
        var ends: [Int32] = [-1, -1]
        guard pipe(&ends) == 0 else { return (-1, -1) }
        for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
        return (ends[0], ends[1])
    }()

    init() {
        _ = Termination.pipeEnds
        signal(SIGTERM) { _ in
            signal(SIGTERM, SIG_DFL)
            var byte: UInt8 = 0
            _ = write(Termination.pipeEnds.write, &byte, 1)
        }
    }

    /// Wait until the descriptor can be read; return false if SIGTERM arrived.
    func waits(for descriptor: Int32) -> Bool {
        var polled = [
            pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0),
            pollfd(fd: Termination.pipeEnds.read, events: Int16(POLLIN), revents: 0),
        ]
        while poll(&polled, 2, -1) < 0, errno == EINTR {}
        return polled[1].revents == 0
    }
}
