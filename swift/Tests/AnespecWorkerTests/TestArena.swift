import Foundation

@testable import AnespecWorker

/// The file of an arena as a host writes it; tests may damage it before it is opened.
struct TestArena {
    static let step = 16384
    var bytes: [UInt8]
    let offsets: [String: Int]

    /// - Parameter entries: the names and bytes of the entries, in order.
    init(_ entries: [(name: String, bytes: Int)]) {
        var offsets: [String: Int] = [:]
        var table: [UInt8] = []
        var offset = TestArena.step
        for (name, size) in entries {
            offsets[name] = offset
            table += Array(name.utf8) + [UInt8](repeating: 0, count: 64 - name.utf8.count)
            table += little(UInt64(offset)) + little(UInt64(size))
            offset += (size + TestArena.step - 1) / TestArena.step * TestArena.step
        }
        var header = Arena.magic + little(protocolVersion) + little(UInt32(4096)) + little(UInt64(offset))
        header += [UInt8](repeating: 0, count: 32)
        header += little(UInt64(4096)) + little(UInt32(entries.count)) + little(UInt32(80))
        bytes = header + [UInt8](repeating: 0, count: 4096 - header.count) + table
        bytes += [UInt8](repeating: 0, count: offset - bytes.count)
        self.offsets = offsets
    }

    /// Return a descriptor of an unlinked file with these bytes.
    func descriptor() -> Int32 {
        var path = Array("/tmp/anespec-arena-XXXXXX".utf8CString)
        let descriptor = mkstemp(&path)
        unlink(path)
        bytes.withUnsafeBytes { precondition(write(descriptor, $0.baseAddress, $0.count) == $0.count) }
        return descriptor
    }

    func open() throws -> Arena {
        let descriptor = descriptor()
        defer { close(descriptor) }
        return try Arena(descriptor: descriptor)
    }
}

extension Arena {
    /// The numbers of an entry.
    subscript(name: String) -> [UInt16] {
        get {
            let entry = try! entry(name)
            let memory = try! pointer(name, bytes: entry.bytes).assumingMemoryBound(to: UInt16.self)
            return Array(UnsafeBufferPointer(start: memory, count: entry.bytes / 2))
        }
        set {
            let memory = try! pointer(name, bytes: newValue.count * 2).assumingMemoryBound(to: UInt16.self)
            memory.update(from: newValue, count: newValue.count)
        }
    }
}

func little(_ value: some FixedWidthInteger) -> [UInt8] {
    withUnsafeBytes(of: value.littleEndian, Array.init)
}

/// A generator whose numbers are the same in every run.
struct SeededGenerator: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
        return (state >> 33) ^ (state << 31)
    }
}
