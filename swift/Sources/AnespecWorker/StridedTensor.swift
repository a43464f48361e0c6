/// A tensor of fp16 numbers in memory, as bits, with strides.
struct StridedTensor {
    let base: UnsafeMutablePointer<UInt16>
    let sizes: [Int]
    let strides: [Int]

    /// - Parameter strides: in elements; nil means contiguous in C order.
    init(_ memory: UnsafeMutableRawPointer, _ sizes: [Int], strides: [Int]? = nil) {
        base = memory.assumingMemoryBound(to: UInt16.self)
        self.sizes = sizes
        self.strides = strides ?? contiguousStrides(sizes)
    }

    /// Return the address of the elements along the last axis at `index`.
    private func row(_ index: [Int]) -> UnsafeMutablePointer<UInt16> {
        base + zip(index, strides).reduce(0) { $0 + $1.0 * $1.1 }
    }

    /// Copy the elements of a tensor of the same sizes.
    func copy(from other: StridedTensor) {
        guard let width = sizes.last else { return }
        eachRow { index in
            copyRow(row(index), strides[index.count], other.row(index), other.strides[index.count], width)
        }
    }

    /// Replace all elements with these bits by other bits.
    func replace(_ bits: UInt16, with other: UInt16) {
        guard let width = sizes.last, let step = strides.last else { return }
        eachRow { index in
            let row = row(index)
            for place in stride(from: 0, to: width * step, by: step) where row[place] == bits { row[place] = other }
        }
    }

    /// Whether all elements are finite; the tensor must be contiguous.
    var isFinite: Bool {
        var strange: UInt16 = 0
        // Without an early exit the compiler can vectorise the loop.
        for bits in UnsafeBufferPointer(start: base, count: sizes.reduce(1, *)) { strange |= bits & 0x7C00 == 0x7C00 ? 1 : 0 }
        return strange == 0
    }

    /// Call `body` with every index of all axes but the last.
    private func eachRow(_ body: ([Int]) -> Void) {
        guard !sizes.isEmpty, !sizes.contains(0) else { return }
        var index = [Int](repeating: 0, count: sizes.count - 1)
        while true {
            body(index)
            guard let axis = index.indices.last(where: { index[$0] + 1 < sizes[$0] }) else { return }
            index[axis] += 1
            for later in index.indices where later > axis { index[later] = 0 }
        }
    }

    /// Return `count` slots (axis 2 of 4) from `first` on, as a tensor over the same memory.
    func slots(_ first: Int, _ count: Int) -> StridedTensor {
        var part = sizes
        part[2] = count
        return StridedTensor(UnsafeMutableRawPointer(base + first * strides[2]), part, strides: strides)
    }

    /// Copy `count` slots within this tensor; the ranges may overlap.
    func copySlots(from source: Int, to target: Int, count: Int) {
        let steps = target > source ? stride(from: count - 1, through: 0, by: -1) : stride(from: 0, through: count - 1, by: 1)
        for step in steps { slots(target + step, 1).copy(from: slots(source + step, 1)) }
    }

    func fillWithZeros() {
        guard let width = sizes.last else { return }
        let zeros = [UInt16](repeating: 0, count: width)
        zeros.withUnsafeBufferPointer { row in
            // A source with strides 0 repeats the same row.
            let source = UnsafeMutableRawPointer(mutating: row.baseAddress!)
            copy(from: StridedTensor(source, sizes, strides: [Int](repeating: 0, count: sizes.count - 1) + [1]))
        }
    }
}

private func copyRow(
    _ target: UnsafeMutablePointer<UInt16>, _ targetStride: Int, _ source: UnsafeMutablePointer<UInt16>,
    _ sourceStride: Int, _ count: Int
) {
    if targetStride == 1, sourceStride == 1 {
        target.update(from: source, count: count)
    } else {
        for index in 0..<count { target[index * targetStride] = source[index * sourceStride] }
    }
}
