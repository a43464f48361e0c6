import Foundation

/// The process that computes predictions: `python -m anespec.runtime.backends.portable.package_server`.
///
/// It is a child of this process with the Python `ANESPEC_STANDIN_PYTHON`, or a server that listens on the Unix socket
/// `ANESPEC_STANDIN_SERVER`. All models of a process share one connection, which closes with the last model.
final class PackageServer {
    nonisolated(unsafe) private static weak var known: PackageServer?

    private let descriptor: Int32

    /// Return the connection of this process; connect if there is none.
    static func shared() throws -> PackageServer {
        if let known { return known }
        let environment = ProcessInfo.processInfo.environment
        let server: PackageServer
        if let path = environment["ANESPEC_STANDIN_SERVER"] {
            server = PackageServer(descriptor: try connected(to: path))
        } else if let python = environment["ANESPEC_STANDIN_PYTHON"] {
            server = PackageServer(descriptor: try child(of: python))
        } else {
            throw standInError(0, "this machine has no Core ML; set ANESPEC_STANDIN_PYTHON to a Python with anespec")
        }
        known = server
        return server
    }

    private init(descriptor: Int32) {
        self.descriptor = descriptor
    }

    deinit {
        close(descriptor)
    }

    /// Open a compiled model, or one of its functions.
    func open(_ path: String, function: String?) throws -> OpenedPackage {
        let question: [String: Any] = ["op": "open", "path": path, "function": function ?? NSNull()]
        return try OpenedPackage(server: self, answer: try ask(question, []).header)
    }

    /// Send a header and the bytes of tensors; return those of the answer.
    func ask(_ header: [String: Any], _ tensors: [[UInt8]]) throws -> (header: [String: Any], bytes: [UInt8]) {
        let text = try JSONSerialization.data(withJSONObject: header)
        let sizes = [UInt64(text.count), UInt64(tensors.reduce(0) { $0 + $1.count })].map(\.littleEndian)
        var message = sizes.withUnsafeBytes(Array.init)
        message += text
        for tensor in tensors { message += tensor }
        try send(message)
        let counts = try receive(16).withUnsafeBytes { raw in
            [0, 8].map { Int(UInt64(littleEndian: raw.loadUnaligned(fromByteOffset: $0, as: UInt64.self))) }
        }
        let answered = try JSONSerialization.jsonObject(with: Data(try receive(counts[0])))
        let bytes = try receive(counts[1])
        guard let answer = answered as? [String: Any] else { throw standInError(0, "the package server is confused") }
        if let error = answer["error"] as? String { throw standInError(0, error) }
        return (answer, bytes)
    }

    private func send(_ message: [UInt8]) throws {
        var sent = 0
        while sent < message.count {
            let written = message.withUnsafeBytes { write(descriptor, $0.baseAddress! + sent, message.count - sent) }
            if written < 0, errno == EINTR { continue }
            guard written > 0 else { throw standInError(0, "the package server has ended") }
            sent += written
        }
    }

    private func receive(_ count: Int) throws -> [UInt8] {
        var buffer = [UInt8](repeating: 0, count: count)
        var received = 0
        while received < count {
            let got = buffer.withUnsafeMutableBytes { read(descriptor, $0.baseAddress! + received, count - received) }
            if got < 0, errno == EINTR { continue }
            guard got > 0 else { throw standInError(0, "the package server has ended") }
            received += got
        }
        return buffer
    }

    private static func connected(to path: String) throws -> Int32 {
        let descriptor = socket(AF_UNIX, standInStream, 0)
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        let bytes = Array(path.utf8)
        guard bytes.count < MemoryLayout.size(ofValue: address.sun_path) else {
            throw standInError(0, "\(path) is too long for a socket")
        }
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: bytes) }
        let result = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
            }
        }
        guard result == 0 else { throw standInError(0, "no package server listens on \(path)") }
        return kept(descriptor)
    }

    /// Start a child whose standard input and output are one end of a socket pair; return the other end.
    ///
    /// The child ends when this end closes.
    private static func child(of python: String) throws -> Int32 {
        var ends: [Int32] = [0, 0]
        guard socketpair(AF_UNIX, standInStream, 0, &ends) == 0 else { throw standInError(0, "no socket pair") }
        var actions = posix_spawn_file_actions_t()
        posix_spawn_file_actions_init(&actions)
        defer { posix_spawn_file_actions_destroy(&actions) }
        posix_spawn_file_actions_adddup2(&actions, ends[1], 0)
        posix_spawn_file_actions_adddup2(&actions, ends[1], 1)
        posix_spawn_file_actions_addclose(&actions, ends[0])
        posix_spawn_file_actions_addclose(&actions, ends[1])
        let words = [python, "-m", "anespec.runtime.backends.portable.package_server"]
        let arguments: [UnsafeMutablePointer<CChar>?] = words.map { strdup($0) } + [nil]
        defer { arguments.forEach { free($0) } }
        var process = pid_t()
        let failure = posix_spawnp(&process, python, &actions, nil, arguments, environ)
        close(ends[1])
        guard failure == 0 else { throw standInError(0, "\(python) cannot be started: \(String(cString: strerror(failure)))") }
        return kept(ends[0])
    }

    private static func kept(_ descriptor: Int32) -> Int32 {
        _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
        return descriptor
    }
}

private let standInStream = Int32(SOCK_STREAM.rawValue)

/// A package that the server keeps open for one model.
final class OpenedPackage {
    let description: MLModelDescription
    private let server: PackageServer
    private let handle: Int

    init(server: PackageServer, answer: [String: Any]) throws {
        guard let handle = answer["model"] as? Int, let inputs = answer["inputs"] as? [String: [Any]],
            let outputs = answer["outputs"] as? [String], let states = answer["states"] as? [String: [Int]]
        else { throw standInError(0, "the package server is confused") }
        self.server = server
        self.handle = handle
        description = MLModelDescription(
            inputs: inputs.mapValues { $0.map { $0 as? Int ?? 1 } }, outputs: outputs, states: states)
    }

    /// Run a prediction; return the outputs by name. The states are changed in place.
    func predict(_ inputs: [String: MLMultiArray], _ states: [String: MLMultiArray]) throws -> [String: TensorBytes] {
        let given = inputs.map { (name: $0.key, tensor: TensorBytes($0.value)) }
        let held = states.map { (name: $0.key, tensor: TensorBytes($0.value)) }
        let question: [String: Any] = [
            "op": "predict", "model": handle,
            "inputs": given.map { name, tensor in
                let type = inputs[name]?.dataType == .int32 ? "int32" : "fp16"
                return ["name": name, "shape": tensor.sizes, "dtype": type] as [String: Any]
            },
            "states": held.map { ["name": $0.name, "shape": $0.tensor.sizes] as [String: Any] },
        ]
        let (answer, bytes) = try server.ask(question, (given + held).map(\.tensor.bytes))
        guard let outputs = answer["outputs"] as? [[String: Any]] else { throw standInError(0, "the package server is confused") }
        var at = 0
        func next(_ sizes: [Int]) throws -> TensorBytes {
            let count = sizes.reduce(2, *)
            guard count >= 0, count <= bytes.count - at else { throw standInError(0, "the package server sent too little") }
            defer { at += count }
            return TensorBytes(sizes: sizes, bytes: Array(bytes[at..<at + count]))
        }
        var made: [String: TensorBytes] = [:]
        for output in outputs {
            guard let name = output["name"] as? String, let sizes = output["shape"] as? [Int] else {
                throw standInError(0, "the package server is confused")
            }
            made[name] = try next(sizes)
        }
        for state in held { try next(state.tensor.sizes).write(to: states[state.name]!) }
        return made
    }
}
