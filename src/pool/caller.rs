//! The tracing span of the caller: a task runs in the span in which it was submitted.

#[cfg(feature = "tracing")]
mod imp {
    use std::sync::Arc;
    use tracing::Span;

    /// What a task keeps of its submitter. A clone does not call the subscriber: one may be made under a lock.
    #[derive(Clone)]
    pub(crate) struct Caller(Option<Arc<Span>>);

    impl Caller {
        /// It calls the subscriber: not under a lock.
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

        /// True where there is nothing to keep.
        pub(crate) fn is_nothing(&self) -> bool {
            self.0.is_none()
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    /// What a task keeps of its submitter: nothing, without the feature `tracing`.
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
