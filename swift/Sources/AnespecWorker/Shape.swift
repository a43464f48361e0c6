/// The sizes of a tensor, some of which may be T, the width of a pass.
struct Shape: Equatable, Hashable {
    /// The sizes; nil is T.
    let sizes: [Int?]

    /// The largest size that is accepted, more than any tensor has.
    static let largest = 1 << 31

    /// - Parameter what: the name of the tensor in errors.
    init(_ value: JSON, _ what: String) throws(WorkerError) {
        guard case .array(let values) = value, !values.isEmpty, values.count <= 5 else {
            throw WorkerError(.request, "\(what) has no shape of 1 to 5 sizes")
        }
        var sizes: [Int?] = []
        for value in values {
            switch value {
            case .null: sizes.append(nil)
            case .integer(let size) where size > 0 && size < Shape.largest: sizes.append(size)
            default: throw WorkerError(.request, "\(what) has a size that is no whole number above 0")
            }
        }
        self.sizes = sizes
    }

    var hasWidth: Bool { sizes.contains(nil) }

    func at(_ rows: Int) -> [Int] {
        sizes.map { $0 ?? rows }
    }
}

/// Return the number of elements of a tensor of these sizes; nil if Int cannot hold it.
func elementCount(_ sizes: [Int]) -> Int? {
    sizes.reduce(1) { count, size in
        guard let count else { return nil }
        let (product, overflows) = count.multipliedReportingOverflow(by: size)
        return overflows ? nil : product
    }
}

/// Return the strides of a contiguous tensor in C order, in elements.
func contiguousStrides(_ sizes: [Int]) -> [Int] {
    var strides = [Int](repeating: 1, count: sizes.count)
    for axis in sizes.indices.dropLast().reversed() {
        strides[axis] = strides[axis + 1] * sizes[axis + 1]
    }
    return strides
}
