//! The order of a queue, in a file: a table with a kind.

use super::tagged::{kinds, no_more, tagged};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate::Order;

kinds! {
    /// An order and its numbers.
    pub(crate) enum OrderSpec {
        Fifo(NoNumbers) = "fifo",
        Lifo(Newest) = "lifo",
        Priority(Priority) = "priority",
        RoundRobin(InTurn) = "round-robin",
        Shares(Shares) = "shares",
    }
    common "kind"
    then no_more
}

macro_rules! numbers {
    ($($name:ident { $($field:ident: $of:ty),* })*) => {$(
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub(crate) struct $name { $($field: $of),* }
    )*};
}
numbers! {
    NoNumbers {}
    Newest {}
    InTurn {}
    Priority { classes: Within<32>, patience: Within<{ u32::MAX }> }
    Shares { weights: Vec<Within<{ u32::MAX }>> }
}

/// A number from one on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub(crate) struct Within<const MOST: u32>(u32);

impl<'de, const MOST: u32> Deserialize<'de> for Within<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = u64::deserialize(deserializer)?;
        match u32::try_from(given) {
            Ok(number) if (1..=MOST).contains(&number) => Ok(Self(number)),
            _ => {
                let allowed = format!("a whole number of 1 to {MOST}");
                Err(D::Error::invalid_value(Unexpected::Unsigned(given), &allowed.as_str()))
            }
        }
    }
}

pub(crate) fn serialize<S: Serializer>(order: &Order, serializer: S) -> Result<S::Ok, S::Error> {
    let spec: OrderSpec = match order.clone() {
        Order::Lifo => Newest {}.into(),
        Order::Priority { classes, patience } => {
            let (classes, patience) = (Within(classes.into()), Within(patience));
            Priority { classes, patience }.into()
        }
        Order::RoundRobin => InTurn {}.into(),
        Order::Shares(weights) => {
            let weights = weights.into_iter().map(Within).collect();
            Shares { weights }.into()
        }
        _ => NoNumbers {}.into(),
    };
    spec.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Order, D::Error> {
    Ok(match tagged(deserializer)? {
        OrderSpec::Fifo(_) => Order::Fifo,
        OrderSpec::Lifo(_) => Order::Lifo,
        OrderSpec::Priority(Priority { classes, patience }) => Order::Priority {
            classes: classes.0 as u8,
            patience: patience.0,
        },
        OrderSpec::RoundRobin(_) => Order::RoundRobin,
        OrderSpec::Shares(Shares { weights }) => Order::Shares(weights.into_iter().map(|weight| weight.0).collect()),
    })
}
