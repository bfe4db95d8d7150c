//! Puts each version of a source in force.

use super::{PolicySource, SourceError};
use crate::policy::live::{Applied, Changes};
use crate::policy::{LiveLegs, Policy};
use std::fmt;

/// What has become of a version.
#[derive(Debug)]
#[non_exhaustive]
pub enum PolicyEvent {
    /// It is in force. What it has changed may be nothing.
    Applied(Changes),
    /// It is put in force next: see [`Applied::Next`].
    HandedOver,
    /// It is wrong, or there was none to be had. The version before stays in force.
    Refused(SourceError),
}

impl fmt::Display for PolicyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Applied(changes) => changes.fmt(f),
            Self::HandedOver => f.write_str("a version was handed over to whoever is changing limits on this thread"),
            Self::Refused(error) => write!(f, "refused, the version before stays in force: {error}"),
        }
    }
}

impl Policy<LiveLegs> {
    /// Puts each version that `source` gives in force, until it gives no more, and tells `event` what has become of it.
    /// To be spawned, or run on a thread of its own.
    ///
    /// # Cancel safety
    /// Dropping the future stops between two versions: each is in force whole, or not at all.
    pub async fn follow(&self, mut source: impl PolicySource, mut event: impl FnMut(PolicyEvent)) {
        while let Some(version) = source.next().await {
            let applied = version.and_then(|spec| self.apply(spec).map_err(SourceError::from));
            event(match applied {
                Ok(Applied::Now(changes)) => PolicyEvent::Applied(changes),
                Ok(Applied::Next) => PolicyEvent::HandedOver,
                Err(error) => PolicyEvent::Refused(error),
            });
        }
    }
}
