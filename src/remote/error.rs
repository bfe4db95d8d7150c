//! Errors in the settings of a remote limiter, and of their changes.

use super::key::Key;
use std::fmt;
use std::time::Duration;

/// An invalid setting, or a change that the store has not carried out.
///
/// ```
/// # use tollgate::remote::{Key, Memory, Remote, RemoteError};
/// # use tollgate::ManualClock;
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// # use std::time::Duration;
/// let builder = Remote::permits(Key::new("exports").unwrap(), 1).on(&clock).ttl(Duration::ZERO);
/// let error = builder.in_place(store).unwrap_err();
/// assert!(matches!(error, RemoteError::Duration { given: Duration::ZERO, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteError {
    /// An invalid name of a limiter.
    Key {
        /// The given name.
        given: Box<str>,
    },
    /// A limit above [`MAX_UNITS`](super::MAX_UNITS).
    Limit {
        /// The given limit.
        given: u64,
    },
    /// A quota that a store cannot count: one that is zero, unlimited or by interval, or exceeds whole numbers of 52 bits.
    Quota {
        /// The given quota.
        given: Box<str>,
    },
    /// A change that this kind of limiter does not have.
    Rule {
        /// The setting to be changed.
        given: &'static str,
        /// The kind of the limiter.
        of: &'static str,
    },
    /// A duration out of its range.
    Duration {
        /// The name of the setting.
        what: &'static str,
        /// The given duration.
        given: Duration,
        /// The least and the most that is allowed.
        allowed: (Duration, Duration),
    },
    /// A prefetch without units, or of more than the limit or burst.
    Prefetch {
        /// The given number.
        given: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// A leg that the key does not have.
    Leg {
        /// The given name.
        given: Box<str>,
        /// The names that are allowed.
        known: Box<str>,
    },
    /// A level that is unknown, is given twice, or is missing; or an invalid name of one.
    Level {
        /// The given name.
        given: Box<str>,
        /// The names that are allowed.
        known: Box<str>,
    },
    /// A feature that this store does not support.
    Unsupported {
        /// The feature.
        what: &'static str,
        /// The store.
        store: &'static str,
    },
    /// Limits of many keys of which a store cannot count all legs, or that do not fit together.
    Keyed {
        /// The level, the tier or the key, and the leg; empty where it is none of them alone.
        at: Box<str>,
        /// What was given, and what is allowed.
        fault: Box<str>,
    },
    /// There is no tokio runtime to run the driver in.
    NoRuntime,
    /// The store is unavailable. A change may be carried out once it is back.
    Unavailable,
    /// The store refuses: a right is missing, there is something else under the key, or the server is set up in a way that loses permits.
    /// A change may be carried out once that is mended.
    Refused {
        /// The error of the store.
        why: Box<str>,
    },
    /// The limiter was closed before the store had carried out a change.
    Closed,
    /// An address, a name or a file that the client of the store cannot use.
    Address {
        /// The reason, without secrets.
        why: Box<str>,
    },
    /// Certificates or a key that an encrypted connection cannot use.
    Certificate {
        /// The faulty part.
        what: &'static str,
        /// The reason, without secrets.
        why: Box<str>,
    },
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { given } => write!(
                f,
                "the name {given:?} was given, and 1 to {} bytes without control characters, spaces and braces are allowed, \
                 but neither `.` nor `..`",
                Key::MAX_BYTES
            ),
            Self::Limit { given } => write!(
                f,
                "a limit of {given} was given, and at most {} is allowed",
                super::MAX_UNITS
            ),
            Self::Quota { given } => write!(
                f,
                "the quota `{given}` was given, and one that neither is zero nor unlimited nor by interval, and that is \
                 counted in whole numbers of 52 bits, is allowed"
            ),
            Self::Rule { given, of } => write!(f, "a {given} was given, and a {of} has none"),
            Self::Duration { what, given, allowed } => write!(
                f,
                "a {what} of {given:?} was given, and {:?} to {:?} is allowed",
                allowed.0, allowed.1
            ),
            Self::Prefetch { given, most } => {
                write!(f, "a prefetch of {given} was given, and 1 to {most} is allowed")
            }
            Self::Leg { given, known } => write!(f, "the leg `{given}` was given, and {known} is allowed"),
            Self::Level { given, known } => write!(f, "the level `{given}` was given, and {known} is allowed"),
            Self::Unsupported { what, store } => write!(f, "{store} cannot do {what}"),
            Self::Keyed { at, fault } if at.is_empty() => f.write_str(fault),
            Self::Keyed { at, fault } => write!(f, "{at}: {fault}"),
            Self::Unavailable => {
                f.write_str("the store is unavailable, and a change may be carried out once it is back")
            }
            Self::Refused { why } => write!(
                f,
                "the store refuses, and a change may be carried out once that is mended: {why}"
            ),
            Self::Closed => f.write_str("the limiter is closed, and the store may not have carried out the change"),
            Self::NoRuntime => f.write_str("there is no tokio runtime to run the driver in"),
            Self::Address { why } => write!(f, "the store's address cannot be used: {why}"),
            Self::Certificate { what, why } => write!(f, "the {what} cannot be used: {why}"),
        }
    }
}

impl std::error::Error for RemoteError {}
