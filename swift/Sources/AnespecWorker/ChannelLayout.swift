/// The axis of the rows in channel tensors: hidden states, embeddings and logits.
///
/// A host declares them as [1, C, T, 1]; a function with rows last takes and returns them as [1, C, 1, T]. In both the
/// rows are innermost, so the numbers have the same order in the arena. No other file refers to these axes.
enum ChannelLayout: String {
    case rowsThird = "rows_third"
    case rowsLast = "rows_last"

    static let channelsAxis = 1

    var rowsAxis: Int { self == .rowsThird ? 2 : 3 }

    /// Return the sizes of a declared shape in a function with this layout, for `rows` as T.
    func sizes(_ declared: Shape, _ rows: Int) -> [Int] {
        guard let channels = declared.channels else { return declared.at(rows) }
        var sizes = [1, channels, 1, 1]
        sizes[rowsAxis] = rows
        return sizes
    }
}

extension Shape {
    /// The channels of a declared channel tensor; nil if the shape is another one.
    var channels: Int? {
        guard sizes.count == 4, let channels = sizes[ChannelLayout.channelsAxis], sizes == [1, channels, nil, 1] else { return nil }
        return channels
    }
}

/// A channel tensor in memory.
struct ChannelTensor {
    let tensor: StridedTensor
    let layout: ChannelLayout

    /// Return the channels of one row.
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
