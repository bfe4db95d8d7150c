//! What a task keeps of its submitter: the tracing span in which it runs, and the task that may wait for it.

use super::cell::Context;
use super::engine::waits::{Holder, Task, current};
use std::sync::Arc;

#[cfg(feature = "tracing")]
mod imp {
    use std::sync::Arc;
    use tracing::Span;

    /// The span of the submitter, kept with the task until that ends. A clone does not call the subscriber, because a
    /// clone may be made under a lock.
    #[derive(Clone)]
    pub(crate) struct Caller(Option<Arc<Span>>);

    impl Caller {
        /// Captures the current span. Calls the subscriber, so never call it under a lock.
        pub(crate) fn current() -> Self {
            let span = Span::current();
            Self((!span.is_none()).then(|| Arc::new(span)))
        }

        pub(crate) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
            match &self.0 {
                Some(span) => span.in_scope(run),
                None => run(),
            }
        }

        /// Returns true if there is nothing to keep.
        pub(crate) fn is_nothing(&self) -> bool {
            self.0.is_none()
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    /// The span of the submitter: none without the feature `tracing`.
    #[derive(Clone)]
    pub(crate) struct Caller;

    impl Caller {
        #[inline(always)]
        pub(crate) fn current() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
            run()
        }

        #[inline(always)]
        pub(crate) fn is_nothing(&self) -> bool {
            true
        }
    }
}

pub(crate) use imp::Caller;

/// The link from a task on a thread, which has a handle, to its submitter, if that holds permits.
pub(super) struct Submitter(Option<Arc<Holder>>);

impl Submitter {
    #[inline]
    pub(super) fn current() -> Self {
        Self(current().map(|submitter| Holder::of(Arc::new([]), Some(submitter))))
    }

    #[inline]
    pub(super) fn waiter(&self) -> Option<&Arc<Holder>> {
        self.0.as_ref()
    }
}

impl Context for Submitter {
    fn cut(&self) {
        if let Some(waiter) = &self.0 {
            waiter.record().cut();
        }
    }
}
