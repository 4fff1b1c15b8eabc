//! Mesh axes by name in the attributes of communication ops: `axes=[tp]` for `axes=[1]`,
//! `split=tp@16` for `{axis=1 stride=16}`.

use crate::mesh::Mesh;
use crate::reason;
use crate::reason::Reason;
use serde_json::{Map, Value, json};

/// Attributes that are a digit of an axis.
const SPLITS: [&str; 2] = ["split", "to_split"];

/// Whether the op's `axes` are axes of the mesh, not dimensions.
fn spans_mesh_axes(op: &str) -> bool {
    op == "all_reduce"
}

/// Whether the op's `axis` is an axis of the mesh, not a dimension.
fn crosses_a_mesh_axis(op: &str) -> bool {
    op == "transfer"
}

/// Replaces axis numbers by names.
pub(super) fn name_axes(op: &str, attributes: &mut Map<String, Value>, mesh: &Mesh) {
    let name = |number: &Value| -> Option<&str> { Some(&mesh.axes().get(number.as_u64()? as usize)?.name) };
    if let Some(Value::Array(axes)) = attributes.get_mut("axes").filter(|_| spans_mesh_axes(op)) {
        for axis in axes {
            *axis = name(axis).map_or_else(|| axis.clone(), Value::from);
        }
    }
    if let Some(axis) = attributes.get_mut("axis").filter(|_| crosses_a_mesh_axis(op)) {
        *axis = name(axis).map_or_else(|| axis.clone(), Value::from);
    }
    for key in SPLITS {
        if let Some(split) = attributes.get_mut(key)
            && let (Some(name), Some(stride)) = (name(&split["axis"]), split["stride"].as_u64())
        {
            *split = format!("{name}@{stride}").into();
        }
    }
}

/// Replaces axis names by numbers; an error names the axis that the mesh lacks.
pub(super) fn number_axes(op: &str, attributes: &mut Map<String, Value>, mesh: &Mesh) -> Result<(), Reason> {
    let number = |name: &str| mesh.axis(name).map(|a| a.0).ok_or_else(|| reason!("the mesh has no axis `{name}`"));
    if let Some(Value::Array(axes)) = attributes.get_mut("axes").filter(|_| spans_mesh_axes(op)) {
        for axis in axes {
            *axis = number(axis.as_str().ok_or("axes are names")?)?.into();
        }
    }
    if let Some(axis) = attributes.get_mut("axis").filter(|_| crosses_a_mesh_axis(op)) {
        *axis = number(axis.as_str().ok_or("an axis is a name")?)?.into();
    }
    for key in SPLITS {
        let Some(split) = attributes.get_mut(key) else { continue };
        let (axis, stride) = split.as_str().and_then(|s| s.rsplit_once('@')).ok_or("a split is `axis@stride`")?;
        let stride: u64 = stride.parse().map_err(|_| reason!("`{stride}` is no stride"))?;
        *split = json!({ "axis": number(axis)?, "stride": stride });
    }
    Ok(())
}
