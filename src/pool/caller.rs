//! The context that a task keeps of its submitter: the tracing span in which it runs, and the task that may wait for
//! it.

use super::engine::waits::{Holder, Task, current};
use std::sync::Arc;

#[cfg(feature = "tracing")]
mod imp {
    use std::sync::Arc;
    use tracing::Span;

    /// The span of the submitter. A clone does not call the subscriber, because a clone may be made under a lock.
    #[derive(Clone)]
    pub(super) struct Spanned(Option<Arc<Span>>);

    impl Spanned {
        /// Captures the current span. Calls the subscriber, so never call it under a lock.
        pub(super) fn current() -> Self {
            let span = Span::current();
            Self((!span.is_none()).then(|| Arc::new(span)))
        }

        pub(super) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
            match &self.0 {
                Some(span) => span.in_scope(run),
                None => run(),
            }
        }

        /// Returns true if there is nothing to keep.
        pub(super) fn is_nothing(&self) -> bool {
            self.0.is_none()
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    /// The span of the submitter: none without the feature `tracing`.
    #[derive(Clone)]
    pub(super) struct Spanned;

    impl Spanned {
        #[inline(always)]
        pub(super) fn current() -> Self {
            Self
        }

        #[inline(always)]
        pub(super) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
            run()
        }

        #[inline(always)]
        pub(super) fn is_nothing(&self) -> bool {
            true
        }
    }
}

#[derive(Clone)]
pub(crate) struct Caller {
    span: imp::Spanned,
    /// The link to the submitting task, if that holds permits, for as long as there is a handle.
    waiter: Option<Arc<Holder>>,
}

impl Caller {
    /// Captures the context of a task without a waiter, or one that knows its waiter itself. Calls the subscriber, so
    /// never call it under a lock.
    #[inline]
    pub(crate) fn current() -> Self {
        let span = imp::Spanned::current();
        Self { span, waiter: None }
    }

    /// Captures the context of a task on a thread, which has a handle.
    #[inline]
    pub(super) fn waits() -> Self {
        let waiter = current().map(|submitter| Holder::of(Arc::new([]), Some(submitter)));
        Self {
            waiter,
            ..Self::current()
        }
    }

    /// Cuts the link to the waiter: no task will wait for this one.
    pub(super) fn cut(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.record().cut();
        }
    }

    #[inline]
    pub(super) fn waiter(&self) -> Option<&Arc<Holder>> {
        self.waiter.as_ref()
    }

    #[inline]
    pub(crate) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        self.span.within(run)
    }

    /// Returns true if there is nothing to keep.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.span.is_nothing()
    }
}
