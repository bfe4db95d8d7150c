//! A closure inside its entry: most capture a few words, and memory that one thread makes, another reads and a third
//! frees is most of what a small task costs.

use super::cell::Ran;
use super::entry::run_quietly;
use super::hooks::Payload;
use stackfuture::StackFuture;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// As many bytes as make an entry one line of the cache.
const BYTES: usize = 48;

pub(super) struct Small<'j>(StackFuture<'j, (), BYTES>);

/// A closure as a future, which is ready at the first poll: what there is to put things of any type into a place of fixed
/// size, in safe code, takes futures.
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

impl<'j> Small<'j> {
    /// True of closures that are small enough.
    pub(super) const fn fits<F>() -> bool {
        StackFuture::<'_, (), BYTES>::has_space_for::<Once<F>>()
            && StackFuture::<'_, (), BYTES>::has_alignment_for::<Once<F>>()
    }

    /// Of one that [`fits`](Self::fits).
    #[inline]
    pub(super) fn new<F: FnOnce() + Send + 'j>(task: F) -> Self {
        match StackFuture::try_from(Once(Some(task))) {
            Ok(place) => Self(place),
            Err(_) => unreachable!("it fits"),
        }
    }

    /// Runs it. Nothing is left of it then.
    #[inline]
    pub(super) fn run(self, orphan: &mut dyn FnMut(Payload)) -> Ran {
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
    use crate::pool::entry::Entry;
    use std::hint::black_box;

    fn fits<F: FnOnce()>(_: &F) -> bool {
        Small::fits::<F>()
    }

    #[repr(align(16))]
    struct Aligned(u8);

    #[test]
    fn an_entry_is_one_line_and_has_room_for_five_words() {
        assert_eq!(size_of::<Entry<'_>>(), 64);
        let (five, six, aligned) = ([0usize; 5], [0usize; 6], Aligned(0));
        assert!(fits(&move || _ = black_box(five)));
        assert!(!fits(&move || _ = black_box(six)) && !fits(&move || _ = black_box(&aligned).0));
        // And for six where one of them is never null.
        let text = (String::new(), [0usize; 3]);
        assert!(fits(&move || _ = black_box(text)));
    }
}
