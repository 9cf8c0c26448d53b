//! What a program that waits does ahead, besides its linking: whatever is the same for
//! every machine. Where QEMU is another than the one this was measured with, and does
//! not have what is looked for, it does it itself, later.

use libc::{c_char, c_int, c_void, size_t};
use std::{ffi::CStr, mem::transmute};

/// What QEMU allocates until it answers, in pieces that come from the heap.
const HEAP: usize = 5 << 20;
const PIECE: usize = 64 << 10;
const PAGE: usize = 4096;
/// So much of the heap stays when it is freed: more than is asked for here.
const KEPT: c_int = 32 << 20;

/// Has memory in place that the program is about to ask for: to be given it page by
/// page takes a fifth of what is left of its start.
#[allow(unsafe_code)]
pub fn heap() {
    // SAFETY: a number for the allocator; then pieces that are its own, of which each is
    // written to within its size, and freed once.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        let pieces: Vec<*mut c_void> = (0..HEAP / PIECE).map(|_| libc::malloc(PIECE)).collect();
        for piece in pieces.iter().filter(|piece| !piece.is_null()) {
            (0..PIECE).step_by(PAGE).for_each(|at| piece.cast::<u8>().add(at).write_volatile(0));
        }
        pieces.into_iter().for_each(|piece| libc::free(piece));
    }
}

/// `MODULE_INIT_QOM` of QEMU's module.h.
const TYPES: c_int = 3;

/// Has QEMU know its own types: it registers some two thousand, and makes the class of
/// each when it looks for those of machines. Both are done once, whoever asks first.
#[allow(unsafe_code)]
pub fn classes() {
    let (Some(register), Some(list)) = (symbol(c"module_call_init"), symbol(c"object_class_get_list")) else {
        return;
    };
    // SAFETY: QEMU's functions of these names have these types.
    let (register, list) = unsafe {
        (
            transmute::<*mut c_void, extern "C" fn(c_int)>(register),
            transmute::<*mut c_void, extern "C" fn(*const c_char, bool) -> *mut c_void>(list),
        )
    };
    register(TYPES);
    // The list itself is a few bytes that nobody frees.
    let _ = list(c"machine".as_ptr(), false);
}

#[allow(unsafe_code)]
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a name up, in the program and its libraries.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Memory below this is not worth a huge page.
const SMALL: usize = 4 << 20;

/// libc's, but for one advice: QEMU asks for huge pages wherever it has memory of its
/// own, and the first word of its firmware's tables then clears 2 MiB while a
/// machine waits.
///
/// # Safety
/// Called with what libc's own is called with.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    if advice == libc::MADV_HUGEPAGE && length < SMALL {
        return 0;
    }
    // SAFETY: what the caller wants of its own memory.
    unsafe { libc::syscall(libc::SYS_madvise, address, length, advice) as c_int }
}
