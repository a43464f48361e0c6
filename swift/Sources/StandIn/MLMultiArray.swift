import Foundation

/// The stand-in for Core ML's type (MLMultiArray.h); only fp16 and, for inputs, int32 ever hold numbers here.
public enum MLMultiArrayDataType: Int, Sendable {
    case double = 0x10040
    case float32 = 0x10020
    case float16 = 0x10010
    case int32 = 0x20020
}

/// The stand-in for Core ML's type (MLMultiArray.h): a tensor over memory with strides in numbers.
public class MLMultiArray: NSObject {
    public let dataPointer: UnsafeMutableRawPointer
    public let dataType: MLMultiArrayDataType
    public let shape: [NSNumber]
    public let strides: [NSNumber]
    private let deallocator: ((UnsafeMutableRawPointer) -> Void)?

    public init(
        dataPointer: UnsafeMutableRawPointer, shape: [NSNumber], dataType: MLMultiArrayDataType, strides: [NSNumber],
        deallocator: ((UnsafeMutableRawPointer) -> Void)? = nil
    ) throws {
        guard shape.count == strides.count else { throw standInError(0, "shape and strides differ in length") }
        self.dataPointer = dataPointer
        self.shape = shape
        self.dataType = dataType
        self.strides = strides
        self.deallocator = deallocator
    }

    /// Make a contiguous array of zeros in C order. (Core ML does not define the numbers.)
    public convenience init(shape: [NSNumber], dataType: MLMultiArrayDataType) throws {
        var strides = [Int](repeating: 1, count: shape.count)
        for axis in shape.indices.dropLast().reversed() { strides[axis] = strides[axis + 1] * shape[axis + 1].intValue }
        let bytes = shape.reduce((dataType.rawValue & 0xFF) / 8) { $0 * $1.intValue }
        let memory = UnsafeMutableRawPointer.allocate(byteCount: max(bytes, 1), alignment: 64)
        memory.initializeMemory(as: UInt8.self, repeating: 0, count: bytes)
        try self.init(
            dataPointer: memory, shape: shape, dataType: dataType, strides: strides.map(NSNumber.init(value:)),
            deallocator: { $0.deallocate() })
    }

    deinit {
        deallocator?(dataPointer)
    }

    public var count: Int { shape.reduce(1) { $0 * $1.intValue } }

    public func withUnsafeBytes<R>(_ body: (_ ptr: UnsafeRawBufferPointer) throws -> R) rethrows -> R {
        try body(UnsafeRawBufferPointer(start: dataPointer, count: span))
    }

    public func withUnsafeMutableBytes<R>(
        _ body: (_ ptr: UnsafeMutableRawBufferPointer, _ strides: [Int]) throws -> R
    ) rethrows -> R {
        try body(UnsafeMutableRawBufferPointer(start: dataPointer, count: span), strides.map(\.intValue))
    }

    /// The bytes from the first element to the last.
    private var span: Int {
        let last = zip(shape, strides).reduce(0) { $0 + ($1.0.intValue - 1) * $1.1.intValue }
        return count == 0 ? 0 : (last + 1) * ((dataType.rawValue & 0xFF) / 8)
    }
}
