//! InlineTask closures, stored inside their entries. Most closures capture a few words. Memory that one thread allocates, another
//! reads and a third frees is most of a small task's cost.

use super::entry::run_quietly;
use crate::pool::cell::Ran;
use crate::pool::hooks::Payload;
use stackfuture::StackFuture;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// The number of bytes that makes an entry one cache line.
const BYTES: usize = 48;

pub(in crate::pool) struct InlineTask<'j>(StackFuture<'j, (), BYTES>);

/// A closure as a future that is ready at the first poll: `StackFuture`, which stores a value of any type in a fixed size
/// without unsafe code here, takes futures.
struct Once<F>(Option<F>);

/// The closure is moved out before it runs.
impl<F> Unpin for Once<F> {}

impl<F: FnOnce()> Future for Once<F> {
    type Output = ();
    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if let Some(task) = self.get_mut().0.take() {
            task();
        }
        Poll::Ready(())
    }
}

impl<'j> InlineTask<'j> {
    /// Returns true if closures of this type fit.
    pub(in crate::pool) const fn fits<F>() -> bool {
        StackFuture::<'_, (), BYTES>::has_space_for::<Once<F>>()
            && StackFuture::<'_, (), BYTES>::has_alignment_for::<Once<F>>()
    }

    /// Stores a closure that [`fits`](Self::fits).
    #[inline]
    pub(in crate::pool) fn new<F: FnOnce() + Send + 'j>(task: F) -> Self {
        match StackFuture::try_from(Once(Some(task))) {
            Ok(place) => Self(place),
            Err(_) => unreachable!("the closure fits"),
        }
    }

    /// Runs the closure, and leaves no memory to free.
    #[inline]
    pub(in crate::pool) fn run(self, orphan: &mut dyn FnMut(Payload)) -> Ran {
        let mut task = pin!(self.0);
        run_quietly(
            || _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop())),
            orphan,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::threads::entry::Entry;
    use std::hint::black_box;

    fn fits<F: FnOnce()>(_: &F) -> bool {
        InlineTask::fits::<F>()
    }

    #[repr(align(16))]
    struct Aligned(u8);

    #[test]
    fn an_entry_is_one_cache_line_and_holds_five_words() {
        assert_eq!(size_of::<Entry<'_>>(), 64);
        let (five, six, aligned) = ([0usize; 5], [0usize; 6], Aligned(0));
        assert!(fits(&move || _ = black_box(five)));
        assert!(!fits(&move || _ = black_box(six)) && !fits(&move || _ = black_box(&aligned).0));
        // Six fit if one of them is never null.
        let text = (String::new(), [0usize; 3]);
        assert!(fits(&move || _ = black_box(text)));
    }
}
