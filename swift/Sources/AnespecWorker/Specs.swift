/// An input or output of a shard, and its entry in the arena.
struct TensorSpec: Equatable {
    /// The element type.
    enum Element: String {
        case fp16, int32

        var bytes: Int { self == .fp16 ? 2 : 4 }
    }

    let name: String
    let shape: Shape
    let buffer: String
    let element: Element

    init(_ value: JSON, _ what: String) throws(WorkerError) {
        var fields = try Fields(value, what)
        name = try fields.string("name")
        shape = try Shape(try fields.required("shape"), "\(what) \"\(name)\"")
        buffer = try fields.string("buffer")
        let named = try fields.optionalString("dtype") ?? Element.fp16.rawValue
        guard let element = Element(rawValue: named) else {
            throw WorkerError(.request, "\(what) \"\(name)\" is of the unknown type \"\(named)\"")
        }
        self.element = element
        try fields.finish()
    }

    /// Return the name of the entry at this width.
    func entry(_ rows: Int) -> String {
        shape.hasWidth ? "\(buffer)@\(rows)" : buffer
    }
}

/// A state of a shard: in its graph or, with a `cache`, in the arena. Axis 2 of 4 has the slots.
struct StateSpec: Equatable {
    /// The entry in which the worker holds the state, and the output with its new rows, nil if passes only read it.
    struct Cache: Equatable {
        let buffer: String
        let new: String?
    }

    let name: String
    let sizes: [Int]
    let pool: Int
    let cache: Cache?

    var slots: Int { sizes[2] }

    /// Parse a state that the shard's graph holds.
    static func held(_ value: JSON, _ what: String) throws(WorkerError) -> StateSpec {
        try StateSpec(value, what, isCache: false)
    }

    /// Parse a state that the worker holds in the arena.
    static func cached(_ value: JSON, _ what: String) throws(WorkerError) -> StateSpec {
        try StateSpec(value, what, isCache: true)
    }

    private init(_ value: JSON, _ what: String, isCache: Bool) throws(WorkerError) {
        var fields = try Fields(value, what)
        name = try fields.string("name")
        let shape = try Shape(try fields.required("shape"), "\(what) \"\(name)\"")
        guard !shape.hasWidth, shape.sizes.count == 4 else {
            throw WorkerError(.request, "\(what) \"\(name)\" has no shape of 4 sizes")
        }
        sizes = shape.at(0)
        pool = try fields.integer("pool", 0...255)
        cache = isCache ? Cache(buffer: try fields.string("buffer"), new: try fields.optionalString("new")) : nil
        try fields.finish()
    }

    /// Return the sizes of a pass's new rows.
    func newSizes(_ rows: Int) -> [Int] {
        [sizes[0], sizes[1], rows, sizes[3]]
    }
}

/// A function of a package, the widths that run with it, and the layout of its channel tensors.
struct FunctionSpec: Equatable {
    let name: String?
    let rows: [Int]
    let layout: ChannelLayout

    init(_ value: JSON, _ what: String) throws(WorkerError) {
        var fields = try Fields(value, what)
        name = try fields.optionalString("name")
        rows = try fields.integers("rows", 1...widest)
        let named = try fields.optionalString("layout") ?? ChannelLayout.rowsThird.rawValue
        guard let layout = ChannelLayout(rawValue: named) else {
            throw WorkerError(.request, "\(what) has the unknown layout \"\(named)\"")
        }
        self.layout = layout
        try fields.finish()
    }
}

/// One shard.
struct StageSpec: Equatable {
    enum Kind: String {
        /// `best` runs a head's functions that find the best tokens.
        case layers, head, best
    }

    let path: String
    let kind: Kind
    let firstToken: Int
    let functions: [FunctionSpec]
    let inputs: [TensorSpec]
    let outputs: [TensorSpec]
    let states: [StateSpec]
    let caches: [StateSpec]

    init(_ value: JSON, _ what: String) throws(WorkerError) {
        var fields = try Fields(value, what)
        path = try fields.string("path")
        let named = try fields.string("kind")
        guard let kind = Kind(rawValue: named) else { throw WorkerError(.request, "\(what) is of the unknown kind \"\(named)\"") }
        self.kind = kind
        firstToken = try fields.integer("first_token", 0...Shape.largest)
        functions = try specs(try fields.array("functions"), "\(what)'s function", FunctionSpec.init)
        inputs = try specs(try fields.array("inputs"), "\(what)'s input", TensorSpec.init)
        outputs = try specs(try fields.array("outputs"), "\(what)'s output", TensorSpec.init)
        states = try specs(try fields.array("states"), "\(what)'s state", StateSpec.held)
        caches = try specs(try fields.array("caches"), "\(what)'s cache", StateSpec.cached)
        try fields.finish()
        try requireSense(what)
    }

    private func requireSense(_ what: String) throws(WorkerError) {
        let widths = functions.flatMap(\.rows)
        guard !widths.isEmpty, Set(widths).count == widths.count else {
            throw WorkerError(.request, "\(what) has no width, or a width in two functions")
        }
        for names in [inputs.map(\.name) + caches.map(\.name), outputs.map(\.name) + caches.compactMap(\.cache?.new), states.map(\.name)]
        where Set(names).count != names.count {
            throw WorkerError(.request, "\(what) names a tensor twice")
        }
        guard !outputs.isEmpty else { throw WorkerError(.request, "\(what) has no output") }
        guard outputs.allSatisfy({ $0.element == .fp16 }) else { throw WorkerError(.request, "\(what) has an output that is not fp16") }
        guard kind != .layers else { return }
        guard states.isEmpty, caches.isEmpty, inputs.count == 1, inputs[0].element == .fp16, inputs[0].shape.sizes.filter({ $0 == nil }).count == 1 else {
            throw WorkerError(.request, "\(what) is a head and takes more than a hidden state")
        }
        for output in outputs where output.shape.channels == nil {
            throw WorkerError(.request, "\(what)'s output \"\(output.name)\" is not [1, V, T, 1]")
        }
    }
}

/// The largest number of rows of a pass that is accepted.
let widest = 1024

/// Parse each value of a list; errors name it by its index.
func specs<Spec>(
    _ values: [JSON], _ what: String, _ read: (JSON, String) throws(WorkerError) -> Spec
) throws(WorkerError) -> [Spec] {
    var all: [Spec] = []
    for (index, value) in values.enumerated() { all.append(try read(value, "\(what) \(index)")) }
    return all
}
