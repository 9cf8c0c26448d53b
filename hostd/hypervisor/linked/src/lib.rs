//! Has a program wait when it is linked, before its `main` begins.
//!
//! Half of QEMU's start is its dynamic linking: 236,000 relocations on 1,400 pages.
//! So hostd starts one ahead with this library preloaded. Linked, it waits for an
//! order (`berth_confine::Order`), becomes the process of the machine that needs one
//! now, and goes on as if it had been started with those arguments. Until then it
//! is root, and has read nothing but its own program; without an order, because
//! hostd is gone, it ends.

mod ready;

use berth_confine::{DESCRIPTORS, FIRST, LONGEST, ORDERS, Order, confine};
use libc::{c_char, c_int, c_void};
use rustix::{
    fs::Gid,
    io::{DupFlags, Errno},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    stdio,
};
use std::{
    ffi::CString,
    io::IoSliceMut,
    mem::{MaybeUninit, transmute},
    os::{
        fd::{AsFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    ptr,
    sync::OnceLock,
};

type Main = extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
type Start = extern "C" fn(
    Main,
    c_int,
    *mut *mut c_char,
    *const c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
) -> c_int;

/// What a shell says of a program that cannot be run.
const UNUSABLE: c_int = 126;

static MAIN: OnceLock<Main> = OnceLock::new();

/// What the program calls when it is linked: libc's, but for `main`.
///
/// # Safety
/// Called by the C runtime with what it calls libc's own with.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_start_main(
    main: Main,
    argc: c_int,
    argv: *mut *mut c_char,
    init: *const c_void,
    fini: *const c_void,
    rtld_fini: *const c_void,
    stack_end: *mut c_void,
) -> c_int {
    // SAFETY: looks a name up, in the libraries that come after this one.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_start_main".as_ptr()) };
    if found.is_null() {
        return UNUSABLE;
    }
    // SAFETY: libc's function of that name has this type.
    let start: Start = unsafe { transmute::<*mut c_void, Start>(found) };
    let _ = MAIN.set(main);
    start(begin, argc, argv, init, fini, rtld_fini, stack_end)
}

/// In the place of `main`.
#[allow(unsafe_code)]
extern "C" fn begin(_: c_int, _: *mut *mut c_char, environment: *mut *mut c_char) -> c_int {
    ready::heap();
    ready::classes();
    let order = match ordered() {
        Ok(Some(order)) => order,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("an order cannot be followed: {error}");
            return UNUSABLE;
        }
    };
    let Some(main) = MAIN.get() else { return UNUSABLE };
    // SAFETY: there is one thread. Nothing that it may execute has an order to wait for.
    unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
    let words: Result<Vec<_>, _> =
        order.arguments.iter().map(|word| CString::new(word.as_bytes()).map(CString::into_raw)).collect();
    let Ok(mut words) = words else { return UNUSABLE };
    let count = c_int::try_from(words.len()).unwrap_or(0);
    words.push(ptr::null_mut());
    main(count, words.leak().as_mut_ptr(), environment)
}

/// Waits for an order and follows it. None: nobody is there to give one.
#[allow(unsafe_code)]
fn ordered() -> Result<Option<Order>, Errno> {
    // SAFETY: hostd has put it there, for this.
    let orders = unsafe { OwnedFd::from_raw_fd(ORDERS) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = vec![0; LONGEST];
    let received =
        recvmsg(&orders, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let order = bytes.get(..received.bytes).and_then(Order::parse).ok_or(Errno::INVAL)?;
    let mut descriptors = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let (Some(netns), Some(log)) = (descriptors.next(), descriptors.next()) else {
        return Err(Errno::BADF);
    };
    stdio::dup2_stderr(&log)?;
    for (descriptor, number) in descriptors.zip(FIRST..) {
        put(&descriptor, number)?;
    }
    rustix::process::chdir(order.directory.as_os_str())?;
    let groups: Vec<_> = order.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    confine(netns.as_fd(), order.uid, &groups)?;
    Ok(Some(order))
}

#[allow(unsafe_code)]
fn put(descriptor: &OwnedFd, number: c_int) -> Result<(), Errno> {
    // SAFETY: nothing has this number yet, and from here on it is the program's.
    let mut place = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup3(descriptor, &mut place, DupFlags::empty())
}
