import Foundation

/// The memory that host and workers share: a header, a table of entries, and the entries (docs/worker.md).
///
/// The header and the table are read and checked once; later changes to them have no effect.
public final class Arena {
    /// The place of an entry in the memory.
    struct Entry: Equatable {
        let offset: Int
        let bytes: Int
    }

    static let magic = Array("ANESPECA".utf8)
    static let headerBytes = 4096
    static let entryBytes = 80
    static let nameBytes = 64
    static let alignment = 16384

    let entries: [String: Entry]
    private let base: UnsafeMutableRawPointer
    private let size: Int

    /// Map the file behind a descriptor, which may be closed afterwards.
    ///
    /// - Parameter build: the SHA-256 of this worker's sources, 64 hexadecimal digits.
    /// - Throws: an `arena` WorkerError.
    public init(descriptor: Int32, build: String = buildIdentity) throws(WorkerError) {
        var status = stat()
        guard fstat(descriptor, &status) == 0, status.st_size >= Arena.headerBytes else {
            throw WorkerError(.arena, "the arena is no file of \(Arena.headerBytes) bytes or more")
        }
        size = Int(status.st_size)
        let mapped = mmap(nil, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        guard let mapped, mapped != MAP_FAILED else {
            throw WorkerError(.arena, "the arena of \(size) bytes cannot be mapped: \(String(cString: strerror(errno)))")
        }
        base = mapped
        do {
            entries = try Arena.table(UnsafeRawBufferPointer(start: mapped, count: size), build: build)
        } catch {
            munmap(mapped, size)
            throw error
        }
    }

    deinit {
        munmap(base, size)
    }

    /// Return the address of an entry that has at least `bytes` bytes.
    ///
    /// - Throws: an `arena` WorkerError.
    func pointer(_ name: String, bytes: Int) throws(WorkerError) -> UnsafeMutableRawPointer {
        let entry = try self.entry(name)
        guard entry.bytes >= bytes else {
            throw WorkerError(.arena, "the arena's \"\(name)\" has \(entry.bytes) bytes, needed are \(bytes)")
        }
        return base + entry.offset
    }

    /// - Throws: an `arena` WorkerError if no entry has this name.
    func entry(_ name: String) throws(WorkerError) -> Entry {
        guard let entry = entries[name] else { throw WorkerError(.arena, "the arena has no \"\(name)\"") }
        return entry
    }

    private static func table(_ memory: UnsafeRawBufferPointer, build: String) throws(WorkerError) -> [String: Entry] {
        func word(_ at: Int) -> Int { Int(UInt32(littleEndian: memory.loadUnaligned(fromByteOffset: at, as: UInt32.self))) }
        func long(_ at: Int) -> Int? { Int(exactly: UInt64(littleEndian: memory.loadUnaligned(fromByteOffset: at, as: UInt64.self))) }

        guard Array(memory[0..<8]) == magic else {
            throw WorkerError(
                .arena, "the arena begins with \(hexadecimal(memory[0..<8])) and not with \(hexadecimal(magic))")
        }
        guard word(8) == Int(protocolVersion) else {
            throw WorkerError(.arena, "the arena is of protocol \(word(8)), this worker of protocol \(protocolVersion)")
        }
        let expected = hexadecimal(memory[24..<56])
        guard expected == build || expected.allSatisfy({ $0 == "0" }) else {
            throw WorkerError(.arena, "the host expects a worker built from \(expected), this one was built from \(build)")
        }
        guard word(12) == headerBytes, word(68) == entryBytes else {
            throw WorkerError(.arena, "the arena's header has \(word(12)) bytes and an entry \(word(68)), not \(headerBytes) and \(entryBytes)")
        }
        guard let total = long(16), total >= headerBytes, total <= memory.count else {
            throw WorkerError(.arena, "the arena claims more bytes than the \(memory.count) of its file, or less than a header")
        }
        let (tableBytes, isTooMany) = word(64).multipliedReportingOverflow(by: entryBytes)
        guard let first = long(56), !isTooMany, first >= headerBytes, first <= total, tableBytes <= total - first else {
            throw WorkerError(.arena, "the arena's table of \(word(64)) entries leaves the arena")
        }
        var entries: [String: Entry] = [:]
        for at in stride(from: first, to: first + tableBytes, by: entryBytes) {
            let name = try self.name(memory[at..<at + nameBytes])
            guard let offset = long(at + 64), let bytes = long(at + 72), bytes > 0, offset % alignment == 0,
                offset >= headerBytes, offset <= total, bytes <= total - offset
            else { throw WorkerError(.arena, "the arena's \"\(name)\" is misaligned, empty, or leaves the arena") }
            guard entries.updateValue(Entry(offset: offset, bytes: bytes), forKey: name) == nil else {
                throw WorkerError(.arena, "the arena has two entries \"\(name)\"")
            }
        }
        try requireDisjoint(entries, beside: Entry(offset: first, bytes: tableBytes))
        return entries
    }

    private static func name(_ field: Slice<UnsafeRawBufferPointer>) throws(WorkerError) -> String {
        let used = field.prefix { $0 != 0 }
        guard !used.isEmpty, field.dropFirst(used.count).allSatisfy({ $0 == 0 }),
            let name = String(validating: used, as: UTF8.self)
        else { throw WorkerError(.arena, "a name in the arena's table is empty, no UTF-8, or not padded with zeros") }
        return name
    }

    private static func requireDisjoint(_ entries: [String: Entry], beside table: Entry) throws(WorkerError) {
        var end = headerBytes
        let all = entries.map { ($0.key, $0.value) } + [("the table", table)]
        for (name, entry) in all.sorted(by: { ($0.1.offset, $0.1.bytes) < ($1.1.offset, $1.1.bytes) }) {
            guard entry.offset >= end else { throw WorkerError(.arena, "the arena's \"\(name)\" overlaps what stands before it") }
            end = entry.offset + entry.bytes
        }
    }
}

/// Return bytes as hexadecimal digits.
func hexadecimal(_ bytes: some Sequence<UInt8>) -> String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
}
