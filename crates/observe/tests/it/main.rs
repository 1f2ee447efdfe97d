//! Tests that need no rights.

mod journeys;
