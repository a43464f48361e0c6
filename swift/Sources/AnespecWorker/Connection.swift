import Foundation

/// Messages over a stream: the number of bytes as a little-endian u32, then the bytes.
public struct Connection {
    /// The largest message, in bytes.
    public static let longest = 16 << 20

    let descriptor: Int32

    public init(descriptor: Int32) {
        self.descriptor = descriptor
    }

    /// Read the next message; return nil if the other side closed the stream between two messages.
    ///
    /// - Throws: a `request` WorkerError if the framing is broken; the stream cannot be used any more.
    public func read() throws(WorkerError) -> [UInt8]? {
        guard let head = try bytes(4, within: false) else { return nil }
        let count = head.reversed().reduce(0) { $0 << 8 | Int($1) }
        guard count > 0, count <= Connection.longest else {
            throw WorkerError(.request, "a message of \(count) bytes; it may have 1 to \(Connection.longest)")
        }
        return try bytes(count, within: true)
    }

    /// Send a message; return false if the other side has closed the stream.
    public func write(_ message: [UInt8]) -> Bool {
        let count = UInt32(message.count).littleEndian
        let framed = withUnsafeBytes(of: count, Array.init) + message
        var sent = 0
        while sent < framed.count {
            let written = framed.withUnsafeBytes { Foundation.write(descriptor, $0.baseAddress! + sent, framed.count - sent) }
            if written < 0, errno == EINTR { continue }
            guard written > 0 else { return false }
            sent += written
        }
        return true
    }

    private func bytes(_ count: Int, within: Bool) throws(WorkerError) -> [UInt8]? {
        var buffer = [UInt8](repeating: 0, count: count)
        var received = 0
        while received < count {
            let got = buffer.withUnsafeMutableBytes { Foundation.read(descriptor, $0.baseAddress! + received, count - received) }
            if got < 0, errno == EINTR { continue }
            if got <= 0 {
                if got == 0 || errno == ECONNRESET, received == 0, !within { return nil }
                throw WorkerError(.request, "a message ends after \(received) of \(count) bytes")
            }
            received += got
        }
        return buffer
    }
}
