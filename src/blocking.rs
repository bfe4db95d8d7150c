//! A blocking call on a thread that drives async tasks stops all of them: it panics, as tokio's own do.

/// Panics where tokio forbids to block the thread. Blocking is legal on threads outside any runtime, those of `spawn_blocking`,
/// those in `block_in_place`, and those that only have a handle of a runtime.
///
/// Only tokio knows which of these it is: it says so when a lock of its own is taken, which is always free. A thread without a
/// runtime is recognised before that.
#[cfg(all(feature = "tokio", not(any(tollgate_loom, tollgate_shuttle))))]
#[inline]
#[track_caller]
pub(crate) fn check() {
    if tokio::runtime::Handle::try_current().is_ok() {
        ask_tokio();
    }
}

#[cfg(all(feature = "tokio", not(any(tollgate_loom, tollgate_shuttle))))]
#[cold]
#[track_caller]
fn ask_tokio() {
    thread_local! {
        static FREE: tokio::sync::Mutex<()> = const { tokio::sync::Mutex::const_new(()) };
    }
    // A thread that is ending drives nothing.
    let _ = FREE.try_with(|free| drop(free.blocking_lock()));
}

#[cfg(not(all(feature = "tokio", not(any(tollgate_loom, tollgate_shuttle)))))]
#[inline]
pub(crate) fn check() {}
