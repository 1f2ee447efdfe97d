//! The documentation of refusals.

/// The documentation of a refusal code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Explanation {
    /// Stable code: `AX001` …
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^AX[0-9]{3}$")))]
    pub code: &'static str,
    /// Name of the variant in Refusal.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[A-Z][A-Za-z0-9]+$")))]
    pub name: &'static str,
    /// Short title.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub title: &'static str,
    /// Condition, and why it forces the slow path.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub explanation: &'static str,
    /// Steps that remove the condition.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub remedy: &'static str,
}
