//! What can be wrong with the settings of a remote limiter.

use super::key::Key;
use std::fmt;
use std::time::Duration;

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteError {
    /// No name for a limiter.
    Key {
        /// What was given.
        given: Box<str>,
    },
    /// A limit above [`MAX_UNITS`](super::MAX_UNITS).
    Limit {
        /// What was given.
        given: u64,
    },
    /// A quota that a store cannot count: one that is zero, unlimited or by interval, or so large that whole numbers of 52
    /// bits do not hold it.
    Quota {
        /// What was given.
        given: Box<str>,
    },
    /// A change that this kind of limiter does not have.
    Rule {
        /// What was to be changed.
        given: &'static str,
        /// What it was to be changed of.
        of: &'static str,
    },
    /// A duration out of its range.
    Duration {
        /// Which.
        what: &'static str,
        /// What was given.
        given: Duration,
        /// The least and the most that is allowed.
        allowed: (Duration, Duration),
    },
    /// A block without units, or with more than the limit or burst has.
    Prefetch {
        /// What was given.
        given: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// Something that this store cannot do.
    Unsupported {
        /// What.
        what: &'static str,
        /// The store.
        store: &'static str,
    },
    /// There is no tokio runtime to run the driver in.
    NoRuntime,
    /// An address, a name or a file that the client of the store cannot use.
    Address {
        /// What is wrong with it, without secrets.
        why: Box<str>,
    },
    /// Certificates or a key that an encrypted connection cannot use.
    Certificate {
        /// Which.
        what: &'static str,
        /// What is wrong with them, without secrets.
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
                write!(f, "a block of {given} was given, and 1 to {most} is allowed")
            }
            Self::Unsupported { what, store } => write!(f, "{store} cannot do {what}"),
            Self::NoRuntime => f.write_str("there is no tokio runtime to run the driver in"),
            Self::Address { why } => write!(f, "the store's address cannot be used: {why}"),
            Self::Certificate { what, why } => write!(f, "the {what} cannot be used: {why}"),
        }
    }
}

impl std::error::Error for RemoteError {}
