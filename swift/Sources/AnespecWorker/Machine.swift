import Foundation

/// Run `body` in an autorelease pool; a loop without a run loop would otherwise never release Objective-C's objects.
func pooled<Result>(_ body: () -> Result) -> Result {
    #if canImport(ObjectiveC)
        return autoreleasepool(invoking: body)
    #else
        return body()
    #endif
}

/// Return the milliseconds of a monotonic clock.
func milliseconds() -> Double {
    var time = timespec()
    clock_gettime(CLOCK_MONOTONIC, &time)
    return Double(time.tv_sec) * 1e3 + Double(time.tv_nsec) / 1e6
}

/// Return the resident bytes of this process, 0 if they are unknown.
func residentBytes() -> Int {
    #if canImport(Darwin)
        var usage = rusage_info_v4()
        let result = withUnsafeMutablePointer(to: &usage) { pointer in
            pointer.withMemoryRebound(to: rusage_info_t?.self, capacity: 1) {
                proc_pid_rusage(getpid(), RUSAGE_INFO_V4, $0)
            }
        }
        return result == 0 ? Int(usage.ri_phys_footprint) : 0
    #else
        guard let text = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8),
            let pages = text.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
        else { return 0 }
        return pages * sysconf(Int32(_SC_PAGESIZE))
    #endif
}
