import Foundation

/// A tensor as contiguous bytes, as the package server exchanges it: fp16, or int32 for some inputs.
struct TensorBytes {
    let sizes: [Int]
    let bytes: [UInt8]

    init(sizes: [Int], bytes: [UInt8]) {
        self.sizes = sizes
        self.bytes = bytes
    }

    /// Copy an array in C order.
    init(_ array: MLMultiArray) {
        let sizes = array.shape.map(\.intValue)
        if array.dataType == .int32 {
            // Only the worker's own arrays are int32, and these are contiguous.
            self.init(sizes: sizes, bytes: array.withUnsafeBytes(Array.init))
            return
        }
        var copy = [UInt16](repeating: 0, count: array.count)
        array.withUnsafeMutableBytes { memory, strides in
            let numbers = memory.bindMemory(to: UInt16.self)
            TensorBytes.walk(sizes, strides) { index, offset in copy[index] = numbers[offset] }
        }
        self.init(sizes: sizes, bytes: copy.withUnsafeBytes(Array.init))
    }

    /// Write the bytes to an array of the same sizes.
    func write(to array: MLMultiArray) {
        bytes.withUnsafeBytes { source in
            array.withUnsafeMutableBytes { memory, strides in
                let numbers = memory.bindMemory(to: UInt16.self)
                TensorBytes.walk(sizes, strides) { index, offset in
                    numbers[offset] = source.loadUnaligned(fromByteOffset: index * 2, as: UInt16.self)
                }
            }
        }
    }

    /// Write the tensor to the backing if that has these sizes, else to a new array; return it.
    func placed(in backing: MLMultiArray?) throws -> MLMultiArray {
        let fits = backing.map { $0.shape.map(\.intValue) == sizes && $0.dataType == .float16 } ?? false
        let array = fits ? backing! : try MLMultiArray(shape: sizes.map(NSNumber.init(value:)), dataType: .float16)
        write(to: array)
        return array
    }

    /// Call `visit` for every element of a tensor in C order, with its index and its offset in memory.
    private static func walk(_ sizes: [Int], _ strides: [Int], _ visit: (Int, Int) -> Void) {
        let count = sizes.reduce(1, *)
        let width = sizes.last ?? 1
        guard count > 0 else { return }
        for row in 0..<count / width {
            var rest = row
            var offset = 0
            for axis in sizes.indices.dropLast().reversed() {
                offset += rest % sizes[axis] * strides[axis]
                rest /= sizes[axis]
            }
            for column in 0..<width { visit(row * width + column, offset + column * (strides.last ?? 1)) }
        }
    }
}
