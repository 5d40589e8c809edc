// Package providers verifies a webhook request and says which messages it brings. What a vendor does is
// written in a sheet (sheets/*.yaml, embedded); a source names a sheet, and Catalog.Configure compiles the
// sheet with the source's secrets and settings into a Verifier.
//
// # Sheets
//
// A place is where a request holds a text, written kind:name: header:Stripe-Signature, query:token,
// json:data.object.id (members joined by dots, [2] for an element, \ before a dot or bracket that belongs
// to a name), pair:t (a pair of the signature's own header), or, without a name, body, method, path
// and body_hash ("body:" and the body's SHA-256). A place whose text is missing, empty or given twice
// holds nothing.
//
// A template is a text with places in braces: "{pair:t}.{body}". It holds nothing as soon as one of
// its places does. Where a key takes a list of templates, the first that holds something counts.
//
// The keys of a sheet:
//
//	name, about       the provider's name, and in a line or two what an operator has to do
//	variants          name: the keys in which this way of signing differs from the sheet
//	default           the variant of a source that names none
//	settings          the keys, dotted, that a source may set
//	signature         scheme (hmac, ed25519, token, none), algorithm, key (how a secret becomes a key: utf8,
//	                  hex, whsec-base64, …), in (a place), prefix, pairs (what stands between two and within
//	                  one, the name of those that count, strict), encoding (hex, hex-lower, base64)
//	signed            template of the signed bytes; it contains {body}
//	timestamp         in (a place that is signed), unit (s, ms, date), tolerance (ahead and behind)
//	require           list of value with equals or without: what must hold of a genuine request
//	items             json place of an array, or json:$ for a body that is one: each element is a message,
//	                  and places of kind json and body_hash mean the element
//	message_id        templates of the message's id, at best of something that the signature covers
//	message_type      templates of its type
//	ordering_key      templates of its ordering key
//	biz_key           types (globs of message types) and from (templates)
//	event_time        from (templates), unit
//	answer            status, content_type, body: what the provider wants to read
//	sample            message_type, content_type, headers, body of a made-up request: $id, $type, $time (RFC
//	                  3339), $unix and $path are filled in
//
// A source's settings are the same keys, as JSON. They are laid over the variant, and the variant over
// the sheet.
package providers
