//! `#[derive(Event)]`: the four lines of an `impl Event`, written for you.
//!
//! An extra, never needed: the trait can be implemented by hand. It generates nothing but that implementation.

use proc_macro::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, Ident, LitStr, Result};

/// The most bytes of a topic, as `posthaste-core` has it.
const MAX_TOPIC_BYTES: usize = 255;

/// Implements `posthaste::Event` for a type: `#[event(topic = "order.placed")]` says its topic, and
/// `#[event(topic = "order.placed", key = order_id)]` also which field is its ordering key.
///
/// ```
/// use posthaste::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(topic = "order.placed", key = order_id)]
/// struct OrderPlaced { order_id: i64 }
///
/// assert_eq!(OrderPlaced::TOPIC, "order.placed");
/// assert_eq!(OrderPlaced { order_id: 42 }.key().as_deref(), Some("42"));
/// ```
#[proc_macro_derive(Event, attributes(event))]
pub fn event(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    implement(&input).unwrap_or_else(Error::into_compile_error).into()
}

#[derive(Default)]
struct Attribute {
    topic: Option<LitStr>,
    key: Option<Ident>,
}

fn implement(input: &DeriveInput) -> Result<proc_macro2::TokenStream> {
    let Attribute { topic, key } = read(input)?;
    let Some(topic) = topic else {
        let message = "which topic? Say it: #[event(topic = \"order.placed\")]";
        return Err(Error::new_spanned(&input.ident, message));
    };
    let name = topic.value();
    if name.is_empty() || name.len() > MAX_TOPIC_BYTES || name.contains('\0') {
        return Err(Error::new_spanned(&topic, "a topic has 1 to 255 bytes, without NUL"));
    }
    let key = key.map(|field| key_of(input, &field)).transpose()?;
    let (ident, (generics, arguments, bounds)) = (&input.ident, input.generics.split_for_impl());
    Ok(quote! {
        impl #generics ::posthaste::Event for #ident #arguments #bounds {
            const TOPIC: &'static str = #topic;
            #key
        }
    })
}

fn read(input: &DeriveInput) -> Result<Attribute> {
    let mut found = Attribute::default();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("event")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("topic") {
                found.topic = Some(meta.value()?.parse()?);
            } else if meta.path.is_ident("key") {
                found.key = Some(meta.value()?.parse()?);
            } else {
                return Err(meta.error("expected topic = \"…\" or key = field"));
            }
            Ok(())
        })?;
    }
    Ok(found)
}

fn key_of(input: &DeriveInput, field: &Ident) -> Result<proc_macro2::TokenStream> {
    let has_field = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => fields.named.iter().any(|named| named.ident.as_ref() == Some(field)),
            _ => false,
        },
        _ => false,
    };
    if !has_field {
        return Err(Error::new_spanned(field, "the key is no field of this struct"));
    }
    Ok(quote! {
        fn key(&self) -> ::core::option::Option<::std::string::String> {
            ::core::option::Option::Some(::std::string::ToString::to_string(&self.#field))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> String {
        implement(&syn::parse_str(source).expect("it is Rust")).expect_err("it is refused").to_string()
    }

    #[test]
    fn mistakes_are_named() {
        assert!(refused("struct A;").contains("which topic?"));
        assert!(refused(r#"#[event(topic = "")] struct A;"#).contains("1 to 255 bytes"));
        assert!(refused(r#"#[event(topic = "a", key = b)] struct A { c: u8 }"#).contains("no field"));
        assert!(refused(r#"#[event(topic = "a", key = b)] enum A { B }"#).contains("no field"));
        assert!(refused(r#"#[event(name = "a")] struct A;"#).contains("expected topic"));
    }

    #[test]
    fn generics_are_kept() {
        let source = r#"#[event(topic = "a")] struct A<T: Clone>(T) where T: Send;"#;
        let code = implement(&syn::parse_str(source).expect("it is Rust")).expect("it is right").to_string();
        assert!(
            code.contains("impl < T : Clone > :: posthaste :: Event for A < T > where T : Send"),
            "{code}"
        );
    }
}
