/// A host's request (docs/worker.md, Messages).
enum Request: Equatable {
    case load(LoadRequest)
    case pass(PassRequest)
    case run(stage: Int, rows: Int, homes: [[Int]]?)
    case copySlots(pool: Int, source: Int, target: Int, count: Int)
    case export(pool: Int, first: Int, count: Int)
    case `import`(pool: Int, first: Int, count: Int)
    case reset
    case stats
    case stop

    init(_ fields: inout Fields) throws(WorkerError) {
        let operation = try fields.string("op")
        switch operation {
        case "load": self = .load(try LoadRequest(&fields))
        case "pass": self = .pass(try PassRequest(&fields))
        case "run":
            let stage = try fields.integer("stage", 0...Int.max)
            let rows = try fields.integer("rows", 1...widest)
            let homes = fields.optional("homes")
            self = .run(stage: stage, rows: rows, homes: homes == nil ? nil : try homesOf(homes!, rows))
        case "copy_slots":
            let pool = try fields.integer("pool", 0...255)
            let source = try fields.integer("source", slotRange)
            let target = try fields.integer("target", slotRange)
            self = .copySlots(pool: pool, source: source, target: target, count: try fields.integer("count", slotRange))
        case "export", "import":
            let pool = try fields.integer("pool", 0...255)
            let first = try fields.integer("first", slotRange)
            let count = try fields.integer("count", slotRange)
            self = operation == "export" ? .export(pool: pool, first: first, count: count) : .import(pool: pool, first: first, count: count)
        case "reset": self = .reset
        case "stats": self = .stats
        case "stop": self = .stop
        default: throw WorkerError(.request, "an unknown \"op\": \"\(operation)\"")
        }
        try fields.finish()
    }
}

private let slotRange = 0...Shape.largest

/// A request to load shards, in the order in which a pass runs them.
struct LoadRequest: Equatable {
    /// The names of `MLComputeUnits`.
    enum Units: String {
        case cpuOnly, cpuAndNeuralEngine, all
    }

    let units: Units
    let hint: ReshapeHint
    /// Whether every width is run once before the reply.
    let firstPasses: Bool
    let vocabulary: Int
    let stages: [StageSpec]

    init(_ fields: inout Fields) throws(WorkerError) {
        let named = try fields.string("compute_units")
        guard let units = Units(rawValue: named) else { throw WorkerError(.request, "unknown compute units \"\(named)\"") }
        self.units = units
        let hinted = try fields.optionalString("reshape_hint") ?? ReshapeHint.none.rawValue
        guard let hint = ReshapeHint(rawValue: hinted) else { throw WorkerError(.request, "unknown reshape hint \"\(hinted)\"") }
        self.hint = hint
        firstPasses = try fields.optionalBool("first_passes") ?? false
        vocabulary = try fields.integer("vocabulary", 1...Shape.largest)
        stages = try specs(try fields.array("stages"), "stage", StageSpec.init)
        guard !stages.isEmpty else { throw WorkerError(.request, "there is no stage to load") }
        let firstHead = stages.firstIndex { $0.kind != .layers } ?? stages.count
        guard stages[firstHead...].allSatisfy({ $0.kind != .layers }) else {
            throw WorkerError(.request, "a head stands before layers")
        }
    }
}

/// A request to run a pass over `rows` rows.
struct PassRequest: Equatable {
    /// The inputs of the heads: lanes of the pass, for one or several runs of `rows` rows, run by run.
    struct Head: Equatable {
        let rows: Int
        let lanes: [Int]
        /// Whether the stages of the kind `best` run instead of the heads; the host reads their entries.
        let best: Bool

        /// The lanes of each run.
        var runs: [[Int]] { stride(from: 0, to: lanes.count, by: rows).map { Array(lanes[$0..<$0 + rows]) } }
    }

    /// The logits requested for one lane.
    struct Wanted: Equatable {
        let lane: Int
        let best: Bool
        let top: Int
        let chosen: [Int]
        let logits: Int?
    }

    let rows: Int
    /// The slot that each lane writes, for each pool; -1 if it writes none.
    let homes: [[Int]]
    let head: Head?
    let wanted: [Wanted]

    init(_ fields: inout Fields) throws(WorkerError) {
        rows = try fields.integer("rows", 1...widest)
        homes = try homesOf(try fields.required("homes"), rows)
        head = try PassRequest.head(fields.optional("head"), rows)
        wanted = try specs(try fields.array("wanted"), "wanted row", Wanted.init)
        guard wanted.isEmpty || head?.best != true else {
            throw WorkerError(.request, "the head finds the best tokens alone, and \(wanted.count) rows are wanted")
        }
        let lanes = Set(head?.lanes ?? [])
        for row in wanted where !lanes.contains(row.lane) {
            throw WorkerError(.request, "lane \(row.lane) is wanted and not among the head's lanes")
        }
    }

    private static func head(_ value: JSON?, _ rows: Int) throws(WorkerError) -> Head? {
        guard let value else { return nil }
        var fields = try Fields(value, "\"head\"")
        let count = try fields.integer("rows", 1...widest)
        let lanes = try fields.integers("lanes", 0...rows - 1)
        let best = try fields.optionalBool("best") ?? false
        try fields.finish()
        guard !best || lanes.count == count else {
            throw WorkerError(.request, "best tokens are wanted of \(lanes.count) lanes in runs of \(count)")
        }
        guard !lanes.isEmpty, lanes.count % count == 0 else {
            throw WorkerError(.request, "the head has \(count) rows and \(lanes.count) lanes")
        }
        guard count != rows || lanes == Array(0..<rows) else {
            throw WorkerError(.request, "the head is as wide as the pass, and its lanes are not those of the pass in order")
        }
        return Head(rows: count, lanes: lanes, best: best)
    }
}

extension PassRequest.Wanted {
    init(_ value: JSON, _ what: String) throws(WorkerError) {
        var fields = try Fields(value, what)
        lane = try fields.integer("lane", 0...widest - 1)
        best = try fields.bool("best")
        top = try fields.integer("top", 0...Shape.largest)
        chosen = try fields.integers("chosen", 0...Shape.largest)
        switch fields.optional("logits") {
        case nil: logits = nil
        case .integer(let row) where row >= 0 && row < widest: logits = row
        default: throw WorkerError(.request, "\(what)'s \"logits\" is no row")
        }
        try fields.finish()
    }
}

/// Parse a list of `rows` slots for each pool.
private func homesOf(_ value: JSON, _ rows: Int) throws(WorkerError) -> [[Int]] {
    guard case .array(let pools) = value else { throw WorkerError(.request, "\"homes\" is not a list") }
    var homes: [[Int]] = []
    for pool in pools {
        let slots = try integerList(pool, -1...Shape.largest, "\"homes\"")
        guard slots.count == rows else { throw WorkerError(.request, "\"homes\" has \(slots.count) slots for \(rows) rows") }
        homes.append(slots)
    }
    return homes
}
