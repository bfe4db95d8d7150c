//! Tables whose key `kind` says what their other keys mean.
//!
//! They are read as values of serde first, and then by their kinds: the error of a foreign format names the path of the key, and the
//! reader of files finds its place by that.

use super::SpecError;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::{Map, Value};

/// What such a table says.
pub(crate) trait OfKind: Sized {
    /// The kinds.
    const NAMES: &'static [&'static str];

    /// The keys of a table of any kind.
    const COMMON: &'static str;

    /// Reads the other keys.
    fn of_kind(kind: String, numbers: Map<String, Value>) -> Result<Self, SpecError>;

    /// Reads a table.
    fn of_table(mut table: Map<String, Value>) -> Result<Self, SpecError> {
        match table.remove("kind") {
            Some(Value::String(kind)) => Self::of_kind(kind, table).map_err(|error| error.allowing(Self::COMMON)),
            Some(other) => Err(SpecError::new(
                "kind",
                format!("{other} was given, and a text is allowed"),
            )),
            None => Err(SpecError::whole("key `kind` is missing: what it is")),
        }
    }
}

/// Reads a table.
pub(crate) fn tagged<'de, T: OfKind, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::of_table(Map::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// A kind that there is not.
pub(crate) fn unknown_kind(given: &str, names: &[&str]) -> SpecError {
    SpecError::new(
        "kind",
        format!("`{given}` was given, and one of {} is allowed", names.join(", ")),
    )
}

/// Writes an enum of which each variant has the numbers of one kind, and how it is read and written.
macro_rules! kinds {
    (
        $(#[$meta:meta])* $vis:vis enum $name:ident {
            $($(#[cfg($when:meta)])? $variant:ident($numbers:ty) = $kind:literal,)+
        }
        $(else $other:ident($others:ty))?
        common $common:literal
        then $callback:ident
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(tag = "kind")]
        $vis enum $name {
            $(
                $(#[cfg($when)])?
                #[serde(rename = $kind)]
                #[doc = concat!("`", $kind, "`: [`", stringify!($numbers), "`].")]
                $variant($numbers),
            )+
            $(
                #[serde(untagged)]
                /// A kind of the program's own.
                $other($others),
            )?
        }

        $(
            $(#[cfg($when)])?
            impl From<$numbers> for $name {
                fn from(numbers: $numbers) -> Self {
                    Self::$variant(numbers)
                }
            }

            $(#[cfg($when)])?
            impl $crate::spec::tagged::Variant<$name> for $numbers {
                fn of(kind: &$name) -> Option<&Self> {
                    match kind {
                        $name::$variant(numbers) => Some(numbers),
                        _ => None,
                    }
                }
            }
        )+

        impl $crate::spec::tagged::OfKind for $name {
            const NAMES: &'static [&'static str] = &[$($(#[cfg($when)])? $kind,)+];
            const COMMON: &'static str = $common;

            fn of_kind(kind: String, numbers: serde_json::Map<String, serde_json::Value>) -> Result<Self, $crate::spec::SpecError> {
                match &*kind {
                    $($(#[cfg($when)])? $kind => $crate::file::read_value(&numbers.into()).map(Self::$variant),)+
                    $(_ => Ok(Self::$other(<$others>::of_kind(kind, numbers))),)?
                    #[allow(unreachable_patterns)]
                    _ => Err($crate::spec::tagged::unknown_kind(&kind, Self::NAMES)),
                }
            }
        }

        $callback! { $($(#[cfg($when)])? $variant = $kind,)+ }
    };
}
pub(crate) use kinds;

/// For an enum whose variants need nothing more.
macro_rules! no_more {
    ($($variant:tt)*) => {};
}
pub(crate) use no_more;

/// The numbers of one variant of `E`.
pub(crate) trait Variant<E>: Sized {
    fn of(kind: &E) -> Option<&Self>;
}
