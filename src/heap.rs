//! The process's memory: mimalloc, a heap per thread, as shards share nothing.
//!
//! glibc's heap wears out: after minutes of small and large requests in turns the broker took twice the CPU per message.
//! Built without huge pages, which would double what an idle broker holds.

use mimalloc::MiMalloc;

#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

/// Gives back to the system what this thread freed a while ago. The heap does so by itself, but only while it is worked with: a
/// thread that comes to rest has to ask. Microseconds, mostly.
pub fn give_back() {
    // SAFETY: looks at this thread's own heap, and at what other threads have left; may be called at any time.
    unsafe { libmimalloc_sys::mi_collect(false) }
}
