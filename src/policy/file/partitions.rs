//! Partitions, in a file of several policies.

use super::error::PolicyFileError;
use super::table::Table;
use super::tree::Value;
use crate::policy::spec::{PartitionsSpec, Sharing};
use std::collections::BTreeSet;

type Result<T> = std::result::Result<T, PolicyFileError>;

/// The keys of which one is given.
const SHARING: [&str; 3] = ["guaranteed", "lent", "levels"];

pub(super) fn partitions(table: Table<'_>) -> Result<PartitionsSpec> {
    table.only(&["limit", "guaranteed", "lent", "levels"])?;
    let Some(limit) = table.size("limit", 0)? else {
        return Err(table.missing("limit", "a whole number"));
    };
    let mut given = SHARING.into_iter().filter(|key| table.has(key));
    let Some(key) = given.next() else {
        return Err(table.missing("guaranteed", "the part of each class; or `lent`, or `levels`"));
    };
    if let Some(other) = given.next() {
        let why = format!(
            "`{key}` was given as well, and one of {} is allowed",
            SHARING.join(", ")
        );
        return Err(table.wrong(other, &why));
    }
    let parts = || Ok(table.reals_within(key, 0.0, 1.0)?.unwrap_or_default());
    let sharing = match key {
        "guaranteed" => Sharing::Guaranteed(parts()?),
        "levels" => Sharing::Levels(parts()?),
        _ => Sharing::Lent(classes(table)?),
    };
    Ok(PartitionsSpec::new(limit, sharing))
}

/// The names of classes without parts.
fn classes(table: Table<'_>) -> Result<BTreeSet<String>> {
    let mut classes = BTreeSet::new();
    for node in table.list("lent")?.unwrap_or(&[]) {
        let Value::Text(class) = &node.value else {
            return Err(table.odd(node, "lent", "the name of a class"));
        };
        if !classes.insert(class.clone()) {
            return Err(table.odd(node, "lent", "each class once"));
        }
    }
    Ok(classes)
}
