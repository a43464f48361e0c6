import Foundation

/// Run something, and let go of what Objective-C was to release later; a loop without a run loop never would.
func pooled<Result>(_ body: () -> Result) -> Result {
    #if canImport(ObjectiveC)
        return autoreleasepool(invoking: body)
    #else
        return body()
    #endif
}

/// Milliseconds of a clock that only goes on.
func milliseconds() -> Double {
    var time = timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return Double(time.tv_sec) * 1e3 + Double(time.tv_nsec) / 1e6
}

/// Bytes of memory that this process holds, 0 where that cannot be told.
func residentBytes() -> Int {
    #if canImport(Darwin)
        var info = task_vm_info_data_t()
        var count = mach_msg_type_number_t(MemoryLayout<task_vm_info_data_t>.size / MemoryLayout<natural_t>.size)
        let result = withUnsafeMutablePointer(to: &info) { pointer in
            pointer.withMemoryRebound(to: integer_t.self, capacity: Int(count)) {
                task_info(mach_task_self_, task_flavor_t(TASK_VM_INFO), $0, &count)
            }
        }
        return result == KERN_SUCCESS ? Int(info.phys_footprint) : 0
    #else
        guard let text = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8),
            let pages = text.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
        else { return 0 }
        return pages * sysconf(Int32(_SC_PAGESIZE))
    #endif
}
