//! The process's memory: mimalloc, a heap per thread, as shards share nothing.
//!
//! glibc's heap wears out: after minutes of small and large requests in turns the broker took twice the CPU per message.
//! Built without huge pages, which would double what an idle broker holds.

use libmimalloc_sys::{
    mi_collect, mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};
use std::alloc::{GlobalAlloc, Layout};

#[global_allocator]
static HEAP: Heap = Heap;

/// Every block of so many bytes and more is aligned to as many, and every smaller one to its own size at least.
const BLOCK_ALIGN: usize = 16;

/// mimalloc, asked for an alignment only where its blocks do not have it anyway: asked, it takes a slower way for sizes that
/// are no power of two, and a larger block.
struct Heap;

/// Whether every block of `size` bytes is aligned to `align`.
const fn is_aligned_anyway(size: usize, align: usize) -> bool {
    align <= BLOCK_ALIGN && align <= size
}

// SAFETY: the blocks are mimalloc's, of the size asked for and aligned as asked, by request or as all of that size are;
// they stay where they are until they are freed or moved here. Nothing here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: any size and any power of two are good.
        unsafe { if is_aligned_anyway(size, align) { mi_malloc(size) } else { mi_malloc_aligned(size, align) }.cast() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as above.
        unsafe { if is_aligned_anyway(size, align) { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) }.cast() }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: it came from here.
        unsafe { mi_free(block.cast()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (block, align) = (block.cast(), layout.align());
        // SAFETY: it came from here.
        let moved = unsafe {
            if is_aligned_anyway(size, align) {
                mi_realloc(block, size)
            } else {
                mi_realloc_aligned(block, size, align)
            }
        };
        moved.cast()
    }
}

/// Gives back to the system what this thread freed a while ago. The heap does so by itself, but only while it is worked with: a
/// thread that comes to rest has to ask. Microseconds, mostly.
pub fn give_back() {
    // SAFETY: looks at this thread's own heap, and at what other threads have left; may be called at any time.
    unsafe { mi_collect(false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of every size up to some pages, several of each, fresh, zeroed and moved.
    #[test]
    fn every_block_is_aligned_as_asked() {
        for align in [1, 2, 4, 8, 16, 32, 64, 4096] {
            for size in (1..300).chain((300..20_000).step_by(93)) {
                let layout = Layout::from_size_align(size, align).unwrap();
                let larger = Layout::from_size_align(size + size / 2 + 1, align).unwrap();
                // SAFETY: no size is 0, and each block is freed once, with the layout that it has by then.
                let blocks: Vec<*mut u8> = (0..9)
                    .map(|n| unsafe {
                        match n % 3 {
                            0 => Heap.alloc(layout),
                            1 => Heap.alloc_zeroed(layout),
                            _ => Heap.realloc(Heap.alloc(larger), larger, size),
                        }
                    })
                    .collect();
                for block in &blocks {
                    assert!(!block.is_null() && block.addr().is_multiple_of(align), "{size} {align} {block:?}");
                }
                for block in blocks {
                    // SAFETY: as above.
                    unsafe {
                        let grown = Heap.realloc(block, layout, larger.size());
                        assert!(grown.addr().is_multiple_of(align), "{size} {align} {grown:?}");
                        Heap.dealloc(grown, larger);
                    }
                }
            }
        }
    }
}
