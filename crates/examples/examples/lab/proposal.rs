//! A proposal as people read it: as a table, in words, and as the policy file with other numbers.

use super::error::LabError;
use super::knob::{number, written};
use super::page::Table;
use super::search::{Aim, Proposal};
use std::path::Path;
use tollgate_config::PolicySpec;

/// One line per limit: as given, alone, and as proposed.
pub fn table(found: &Proposal, given: &PolicySpec, aim: &Aim) -> Table {
    let row = |place: usize| {
        let knob = &found.knobs[place];
        let alone = knob.at(found.alone[place]).map(|kind| written(&kind).1);
        vec![
            knob.name.clone(),
            written(&given.legs[knob.leg].kind).1,
            alone.unwrap_or_default(),
            written(&found.spec.legs[knob.leg].kind).1,
        ]
    };
    Table {
        title: format!("The smallest limits for {aim}"),
        head: ["leg", "given", "if it were alone", "proposed"].map(Into::into).into(),
        rows: (0..found.knobs.len()).map(row).collect(),
    }
}

/// What a proposal is worth.
pub fn guarantee(found: &Proposal) -> String {
    let one_less = |place: usize| {
        let step = found.proposed[place];
        (step > 0).then(|| format!("{} {}", found.knobs[place].name, number(step - 1)))
    };
    let less: Vec<_> = (0..found.knobs.len()).filter_map(one_less).collect();
    format!(
        "Proposed after {} runs of this trace. The proposal was run and meets the aim; with any one limit a step of two \
         digits lower ({}) and the others as proposed it was run too, and misses it. Another combination may be lower in \
         one limit and higher in another, and other traffic may need more. A rate's burst goes with its count.",
        found.runs,
        less.join(", ")
    )
}

/// The policy file with the proposed numbers and everything else as it was, if it is TOML.
pub fn edited(path: &Path, found: &Proposal) -> Result<Option<String>, LabError> {
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Ok(None);
    }
    let wrong = |what: String| LabError::new(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut file: toml_edit::DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| wrong(error.to_string()))?;
    for knob in &found.knobs {
        let (key, value) = written(&found.spec.legs[knob.leg].kind);
        let number = value.parse::<i64>().map(toml_edit::Value::from);
        let mut value = number.unwrap_or_else(|_| value.into());
        let item = file
            .get_mut("leg")
            .and_then(|legs| legs.get_mut(knob.leg))
            .and_then(|leg| leg.get_mut(key))
            .and_then(toml_edit::Item::as_value_mut)
            .ok_or_else(|| wrong(format!("leg `{}` has no `{key}` to be changed", knob.name)))?;
        *value.decor_mut() = item.decor().clone();
        *item = value;
    }
    Ok(Some(file.to_string()))
}
