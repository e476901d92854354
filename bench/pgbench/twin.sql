select twin.session_append(
  :session, :payload, item_id => gen_random_uuid()::text, expected_position => :position, lease => :session::text || :nonce
);
