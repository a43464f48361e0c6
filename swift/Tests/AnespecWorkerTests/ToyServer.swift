// Needs the stand-in for Core ML.
#if os(Linux)
import Foundation

/// A tensor of the toy models, which compute with its bits as integers.
struct ToyTensor {
    var sizes: [Int]
    var numbers: [UInt16]

    init(_ sizes: [Int], _ number: (Int) -> UInt16 = { _ in 0 }) {
        self.sizes = sizes
        numbers = (0..<sizes.reduce(1, *)).map(number)
    }
}

/// A toy model: its shapes, and its prediction as a function of inputs and states.
struct ToyModel: Sendable {
    var inputs: [String: [Int?]]
    var outputs: [String]
    var states: [String: [Int]] = [:]
    let predict: @Sendable ([String: ToyTensor], inout [String: ToyTensor]) -> [String: ToyTensor]
}

/// Serves toy models to the stand-in for Core ML, with the protocol of the portable backend's package server.
final class ToyServer: @unchecked Sendable {
    private let models: [String: ToyModel]
    private let listening: Int32
    private let path: String

    /// Listen; `models` are by the paths under which they are loaded.
    init(_ models: [String: ToyModel]) {
        self.models = models
        path = "/tmp/anespec-toy-\(getpid())-\(UInt32.random(in: 0...UInt32.max))"
        listening = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: Array(path.utf8)) }
        let bound = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                bind(listening, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
            }
        }
        precondition(bound == 0 && listen(listening, 8) == 0)
        setenv("ANESPEC_STANDIN_SERVER", path, 1)
        Thread { [self] in
            while true {
                let connection = accept(listening, nil, nil)
                guard connection >= 0 else { return }
                Thread { [self] in answer(connection) }.start()
            }
        }.start()
    }

    /// Accept no more connections; open ones end with their clients.
    func stop() {
        unlink(path)
        shutdown(listening, Int32(SHUT_RDWR))
        close(listening)
    }

    private func answer(_ connection: Int32) {
        defer { close(connection) }
        var opened: [ToyModel] = []
        while let head = read(16, connection) {
            let counts = head.withUnsafeBytes { Array($0.bindMemory(to: UInt64.self)) }
            guard let text = read(Int(counts[0]), connection), let bytes = read(Int(counts[1]), connection),
                let question = try? JSONSerialization.jsonObject(with: Data(text)) as? [String: Any]
            else { return }
            let (reply, made) = question["op"] as? String == "open" ? (open(question, &opened), []) : predict(question, bytes, opened)
            let encoded = try! JSONSerialization.data(withJSONObject: reply)
            let tensors = made.flatMap { tensor in tensor.numbers.withUnsafeBytes(Array.init) }
            let message = little(UInt64(encoded.count)) + little(UInt64(tensors.count)) + encoded + tensors
            _ = write(connection, message, message.count)
        }
    }

    private func open(_ question: [String: Any], _ opened: inout [ToyModel]) -> [String: Any] {
        guard let path = question["path"] as? String, let model = models[path] else { return ["error": "there is no such model"] }
        opened.append(model)
        return [
            "model": opened.count - 1, "inputs": model.inputs.mapValues { $0.map { $0 as Any? ?? NSNull() } },
            "outputs": model.outputs, "states": model.states,
        ]
    }

    private func predict(_ question: [String: Any], _ bytes: [UInt8], _ opened: [ToyModel]) -> ([String: Any], [ToyTensor]) {
        var at = 0
        func tensors(_ key: String) -> [(String, ToyTensor)] {
            (question[key] as! [[String: Any]]).map { listed in
                let tensor = ToyTensor(listed["shape"] as! [Int]) { index in
                    bytes.withUnsafeBytes { $0.loadUnaligned(fromByteOffset: at + index * 2, as: UInt16.self) }
                }
                at += tensor.numbers.count * 2
                return (listed["name"] as! String, tensor)
            }
        }
        let inputs = tensors("inputs")
        let listed = tensors("states")
        var states = Dictionary(uniqueKeysWithValues: listed)
        let made = opened[question["model"] as! Int].predict(Dictionary(uniqueKeysWithValues: inputs), &states)
        let names = made.keys.sorted()
        return (
            ["outputs": names.map { ["name": $0, "shape": made[$0]!.sizes] as [String: Any] }],
            names.map { made[$0]! } + listed.map { states[$0.0]! }
        )
    }

    private func read(_ count: Int, _ connection: Int32) -> [UInt8]? {
        var buffer = [UInt8](repeating: 0, count: count)
        var got = 0
        while got < count {
            let part = buffer.withUnsafeMutableBytes { Foundation.read(connection, $0.baseAddress! + got, count - got) }
            guard part > 0 else { return nil }
            got += part
        }
        return buffer
    }
}
#endif
