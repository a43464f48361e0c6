import Foundation

/// Answers a host's messages, one after another (docs/worker.md).
public final class Worker {
    /// The reply to a message, and whether the worker ends after it.
    public struct Answer {
        public let reply: [UInt8]
        /// The exit status with which to end; nil to continue.
        public let end: Int32?
    }

    private let arena: Arena
    /// The stages in the host's order, in which a pass runs them.
    private var stages: [Stage] = []
    private var layers: [Stage] = []
    private var heads: Heads
    /// The stages of the kind `best`: the heads' functions that find the best tokens.
    private var best: Heads
    private var passes = 0
    private var milliseconds = 0.0
    /// The milliseconds of reading and writing messages, without the current one.
    private var messageMilliseconds = 0.0

    public init(arena: Arena) {
        self.arena = arena
        heads = Heads(stages: [], vocabulary: 0, arena: arena)
        best = heads
    }

    /// Answer a message. A message that cannot be parsed ends the worker.
    public func answer(_ message: [UInt8]) -> Answer {
        let start = AnespecWorker.milliseconds()
        let value: JSON
        do {
            value = try JSONParser.parse(message)
        } catch {
            return Worker.lastWords(WorkerError(.request, "a message is no JSON: \(error.text)"))
        }
        var id = JSON.null
        do {
            var fields = try Fields(value, "the message")
            id = .integer(try fields.integer("id", Int.min...Int.max))
            let request = try Request(&fields)
            let read = AnespecWorker.milliseconds()
            let reply = try carryOut(request).merging(["id": id, "ok": .bool(true)]) { $1 }
            let done = AnespecWorker.milliseconds()
            let encoded = JSON.object(reply).encoded
            messageMilliseconds += read - start + AnespecWorker.milliseconds() - done
            return Answer(reply: encoded, end: request == .stop ? 0 : nil)
        } catch {
            return Answer(reply: Worker.failure(id, error), end: id == .null ? 2 : nil)
        }
    }

    /// Return the reply to a message without an id, after which the worker ends.
    public static func lastWords(_ error: WorkerError) -> Answer {
        Answer(reply: failure(.null, error), end: 2)
    }

    private static func failure(_ id: JSON, _ error: WorkerError) -> [UInt8] {
        JSON.object(["id": id, "ok": .bool(false), "error": error.json]).encoded
    }

    private func carryOut(_ request: Request) throws(WorkerError) -> [String: JSON] {
        switch request {
        case .load(let load): return try self.load(load)
        case .pass(let pass): return try self.pass(pass)
        case .run(let stage, let rows, let homes): return try run(stage, rows, homes)
        case .copySlots(let pool, let source, let target, let count):
            try requireSlots(pool, max(source, target), count)
            for stage in layers {
                try stage.state.each(pool: pool) { $0.copySlots(from: source, to: target, count: count) }
            }
            return [:]
        case .export(let pool, let first, let count): return try move(pool, first, count) { $1.copy(from: $0) }
        case .import(let pool, let first, let count): return try move(pool, first, count) { $0.copy(from: $1) }
        case .reset:
            for stage in layers { try stage.state.each { $0.fillWithZeros() } }
            return [:]
        case .stats: return stats()
        case .stop: return [:]
        }
    }

    private func load(_ load: LoadRequest) throws(WorkerError) -> [String: JSON] {
        guard stages.isEmpty else { throw WorkerError(.request, "shards are loaded already") }
        try requireWithinVocabulary(load)
        let loader = StageLoader(arena: arena, units: load.units, hint: load.hint)
        var loaded: [Stage] = []
        var seconds: [Double] = []
        var told: [JSON] = []
        for spec in load.stages {
            let start = AnespecWorker.milliseconds()
            let stage = try loader.load(spec)
            loaded.append(stage)
            seconds.append((AnespecWorker.milliseconds() - start) / 1e3)
            let first = load.firstPasses ? try stage.runFirstPasses() : []
            told.append(.object([
                "seconds": .number(seconds[seconds.count - 1]),
                "first_passes": .array(first.map { .object(["rows": .integer($0.rows), "milliseconds": .number($0.milliseconds)]) }),
            ]))
        }
        stages = loaded
        layers = loaded.filter { $0.spec.kind == .layers }
        heads = Heads(stages: loaded.filter { $0.spec.kind == .head }, vocabulary: load.vocabulary, arena: arena)
        best = Heads(stages: loaded.filter { $0.spec.kind == .best }, vocabulary: load.vocabulary, arena: arena)
        return [
            "seconds": .number(seconds.reduce(0, +)),
            "stages": .array(told),
        ]
    }

    private func requireWithinVocabulary(_ load: LoadRequest) throws(WorkerError) {
        for stage in load.stages where stage.kind == .head {
            let tokens = stage.outputs.reduce(stage.firstToken) { $0 + ($1.shape.channels ?? 0) }
            guard tokens <= load.vocabulary else {
                throw WorkerError(.request, "the head's tokens end at \(tokens), the vocabulary at \(load.vocabulary)", stage: stage.path)
            }
        }
    }

    private func pass(_ pass: PassRequest) throws(WorkerError) -> [String: JSON] {
        try requireLoaded()
        for stage in layers {
            guard stage.runs(pass.rows) else {
                throw WorkerError(.request, "no function was loaded for \(pass.rows) rows", stage: stage.spec.path)
            }
            try stage.check(homes: pass.homes)
        }
        let findsBest = pass.head?.best ?? false
        guard !findsBest || best.stages.count == heads.stages.count else {
            throw WorkerError(.request, "no function that finds the best tokens was loaded")
        }
        let (asked, resting) = findsBest ? (best, heads) : (heads, best)
        try asked.check(pass)
        let start = AnespecWorker.milliseconds()
        var spent: [Double] = []
        for stage in layers {
            spent.append(try stage.run(pass.rows))
            try stage.requireNumbers(pass.rows)
        }
        for stage in layers { try stage.writeCaches(pass.rows, homes: pass.homes) }
        let (headSpent, rows) = try asked.run(pass)
        let nothing = resting.stages.map { _ in 0.0 }
        let total = AnespecWorker.milliseconds() - start
        passes += 1
        milliseconds += total
        return [
            "milliseconds": .number(total),
            "stages": .array((spent + (findsBest ? nothing + headSpent : headSpent + nothing)).map(JSON.number)),
            "rows": .array(rows),
        ]
    }

    private func run(_ index: Int, _ rows: Int, _ homes: [[Int]]?) throws(WorkerError) -> [String: JSON] {
        try requireLoaded()
        guard stages.indices.contains(index) else {
            throw WorkerError(.request, "there is no stage \(index) of \(stages.count)")
        }
        let stage = stages[index]
        if let homes { try stage.check(homes: homes) }
        let spent = try stage.run(rows)
        if let homes { try stage.writeCaches(rows, homes: homes) }
        return ["milliseconds": .number(spent)]
    }

    /// Copy a pool's slots from or to the entry `slots`, in the order of stages and their states.
    private func move(
        _ pool: Int, _ first: Int, _ count: Int, _ copy: (_ slots: StridedTensor, _ moved: StridedTensor) -> Void
    ) throws(WorkerError) -> [String: JSON] {
        try requireSlots(pool, first, count)
        var needed = 0
        let each = layers.flatMap(\.state.specs).filter { $0.pool == pool }
        for spec in each { needed += try fp16Bytes([spec.sizes[0], spec.sizes[1], count, spec.sizes[3]], spec.name) }
        guard needed > 0 else { return ["bytes": .integer(0)] }
        var memory = try arena.pointer("slots", bytes: needed)
        for stage in layers {
            try stage.state.each(pool: pool) { tensor in
                let slots = tensor.slots(first, count)
                copy(slots, StridedTensor(memory, slots.sizes))
                memory += slots.sizes.reduce(2, *)
            }
        }
        return ["bytes": .integer(needed)]
    }

    private func stats() -> [String: JSON] {
        [
            "passes": .integer(passes),
            "milliseconds": .number(milliseconds),
            "stages": .array(stages.map { .number($0.milliseconds) }),
            "messages": .number(messageMilliseconds),
            "copied": .integer(stages.reduce(0) { $0 + $1.copied }),
            "resident_bytes": .integer(residentBytes()),
        ]
    }

    private func requireLoaded() throws(WorkerError) {
        guard !stages.isEmpty else { throw WorkerError(.request, "nothing is loaded") }
    }

    private func requireSlots(_ pool: Int, _ first: Int, _ count: Int) throws(WorkerError) {
        try requireLoaded()
        for spec in layers.flatMap(\.state.specs) where spec.pool == pool {
            guard count <= spec.slots, first <= spec.slots - count else {
                throw WorkerError(.request, "slots \(first) to \(first + count) leave \"\(spec.name)\" of \(spec.slots)")
            }
        }
    }
}
