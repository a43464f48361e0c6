/// Where the rows of a channel tensor stand: hidden states, embeddings and logits.
///
/// A host declares them as [1, C, T, 1]; a function with its rows last takes and makes them as [1, C, 1, T]. The rows lie
/// innermost in both, so the numbers stand in the same order in the arena. Nothing else names these axes.
enum ChannelLayout: String {
    case rowsThird = "rows_third"
    case rowsLast = "rows_last"

    static let channelsAxis = 1

    var rowsAxis: Int { self == .rowsThird ? 2 : 3 }

    /// The sizes that a function of this layout has for a declared shape.
    func sizes(_ declared: Shape, _ rows: Int) -> [Int] {
        guard let channels = declared.channels else { return declared.at(rows) }
        var sizes = [1, channels, 1, 1]
        sizes[rowsAxis] = rows
        return sizes
    }
}

extension Shape {
    /// The channels of a declared channel tensor; nil for any other shape.
    var channels: Int? {
        guard sizes.count == 4, let channels = sizes[ChannelLayout.channelsAxis], sizes == [1, channels, nil, 1] else { return nil }
        return channels
    }
}

/// A channel tensor in memory.
struct ChannelTensor {
    let tensor: StridedTensor
    let layout: ChannelLayout

    /// The channels of one row.
    func row(_ row: Int) -> [UInt16] {
        let count = tensor.sizes[ChannelLayout.channelsAxis]
        let step = tensor.strides[ChannelLayout.channelsAxis]
        let start = tensor.base + row * tensor.strides[layout.rowsAxis]
        return [UInt16](unsafeUninitializedCapacity: count) { buffer, filled in
            for index in 0..<count { buffer[index] = start[index * step] }
            filled = count
        }
    }
}
